# A close waits for storage without end.
s/context_\.seams\.clock\.now\(\) >= \*session->close_deadline/context_.seams.clock.now() == Time::max()/
