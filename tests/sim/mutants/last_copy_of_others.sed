# A step that another number of ranks saved is rejected when one node alone has a part of it.
s/if \(copies\[rank\]->nodes\.size\(\) == 1\) coverage\.alone\[copies\[rank\]->nodes\.front\(\)\] = true;/if (copies[rank]->nodes.size() == 1) coverage.missing.push_back(rank);/
