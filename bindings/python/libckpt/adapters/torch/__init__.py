"""What libckpt knows of torch: names, states that are filled in place, random generators, hooks."""
