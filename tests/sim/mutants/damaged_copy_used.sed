# A copy that is put together with others is used although it does not match its checksums.
s/if \(crc != lease\.record\(\)\.chunk_crcs\.at\(index\)\)/if (crc != lease.record().chunk_crcs.at(index) \&\& index > 1000)/
