# A copy that was quarantined is never replaced: its sender takes it for given.
s/quarantined_\.emplace_back\(id, digest\);//
