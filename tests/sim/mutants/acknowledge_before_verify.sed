# Says APPLIED though a Chunk did not match its checksum.
s/if \(arrived && arrived->damaged_chunk\)/if (arrived \&\& !record)/
