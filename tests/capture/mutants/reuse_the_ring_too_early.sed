# Both halves of the ring always count as free.
s/queue_\.is_half_used\[half_of_\[next_\]\] = true;/(void)0;/
