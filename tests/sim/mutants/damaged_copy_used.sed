# A copy that is put together with others is used although it does not match its checksums.
s/is_good = copied_to\(places, bytes\) == expected;/is_good = copied_to(places, bytes) == expected || index < 1000;/
