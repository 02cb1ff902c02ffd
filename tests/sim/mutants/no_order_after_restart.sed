# By time, a coordinator that knows of no Start orders nothing.
s/^  if \(!pace_\) \{/  if (!pace_) return std::nullopt;\n  if (!pace_) {/
