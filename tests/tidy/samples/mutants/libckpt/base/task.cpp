int answer() { return 42; }
int other() { return 42; }
