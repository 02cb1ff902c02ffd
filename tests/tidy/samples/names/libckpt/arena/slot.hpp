// Slot: a sample.
#pragma once

class Slot {
  void seal();
};
