# A node that stood still decides by what it had heard before, and by what its peers sent meanwhile.
s/if \(!peers_\.is_heard_by_others\(\)\) return false;//
