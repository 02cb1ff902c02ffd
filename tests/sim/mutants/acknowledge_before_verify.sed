# Says APPLIED though a Chunk did not match its checksum.
s/if \(!arrived\.damaged_chunk\) co_return Status\(\);/if (record) co_return Status();/
