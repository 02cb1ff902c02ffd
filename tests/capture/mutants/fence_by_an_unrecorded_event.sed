# Waits for the last batch's event before all batches were queued: it is of the capture before, or never recorded.
s/order_\.precede\(events_\[next_ - 1\], stream\)/order_.precede(events_.back(), stream)/
s/^  queue_all_left\(\);/  is_unpaced_ = true;/
