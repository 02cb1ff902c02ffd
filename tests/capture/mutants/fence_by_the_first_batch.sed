# The trainer's stream waits for the wrong event.
s/order_\.precede\(events_\[next_ - 1\], stream\)/order_.precede(events_[0], stream)/
