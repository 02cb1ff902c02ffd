# By time, a coordinator that knows of no Start orders nothing.
s/^  if \(!fastest_\) \{/  if (!fastest_) return std::nullopt;\n  if (!fastest_) {/
