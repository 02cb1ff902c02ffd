#include <boost/asio.hpp>
#include "base/task.hpp"
