# Polls the event of each batch, also where a group of them has one: it is of the capture before, or never recorded.
s/event_of_\[next_\] = last;/event_of_[next_] = next_;/
