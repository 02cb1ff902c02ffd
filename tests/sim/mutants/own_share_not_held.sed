# Lost copies of a step that is put together for the ranks that captured it are not made again.
s/co_await hold_own_shard\(rank_number, id, start\);//
