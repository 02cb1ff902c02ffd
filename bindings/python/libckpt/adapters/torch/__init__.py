"""All about torch: names, states that are filled in place, random generators, hooks."""
