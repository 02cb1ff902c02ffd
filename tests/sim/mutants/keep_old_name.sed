# A node that gets another name goes on to sign its decrees with the old one.
s/coordinator_\.set_node\(facts_\.node\);//
