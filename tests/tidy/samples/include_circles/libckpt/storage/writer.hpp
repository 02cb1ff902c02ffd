// Writer: a header that needs nothing.
#pragma once
