// Export: marks the symbols that the shared library shows.
#pragma once

#define CKPT_EXPORT __attribute__((visibility("default")))
