# For the tidy suite, which must refuse it: this does not parse.
if true; then
