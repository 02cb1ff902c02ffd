# A close waits for storage without end.
s/facts_\.clock\(\)\.now\(\) >= \*session->close_deadline/facts_.clock().now() == Time::max()/
