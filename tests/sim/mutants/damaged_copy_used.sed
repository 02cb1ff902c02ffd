# A copy that is put together with others is used although it does not match its checksums.
s/is_good = gather::bring\(sink, chunk\);/is_good = gather::bring(sink, chunk) || index < 1000;/
