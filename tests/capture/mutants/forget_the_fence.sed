# The trainer's stream does not wait for the copies.
s/if \(is_covered_ && order_\.precede\(events_\[next_ - 1\], stream\)\) return \{\};/if (is_covered_) return {};/
