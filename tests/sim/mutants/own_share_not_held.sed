# Of a step that is put together for the ranks that captured it, lost copies are not made again.
s/co_await hold_own_shard\(rank_number, id, start\);//
