// Whoever asks for it waits. Nobody else does.
int a;
// It is short. Who reads it knows.
int b;
// Who has it? Nobody knows whoever it is.
int c;
