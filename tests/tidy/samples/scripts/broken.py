# For the tidy suite, which must refuse it: this does not parse.
def f(:
