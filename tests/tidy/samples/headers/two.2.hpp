// a lower-case name and no guard
int x;
