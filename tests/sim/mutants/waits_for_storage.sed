# A restore waits for the catalog, however long that takes.
s/if \(!state\.is_storage_late\) return/if (!view.published) return/
