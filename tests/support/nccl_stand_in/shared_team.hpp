// SharedTeam: what the ranks of one communicator know of one another, whichever processes they are
// in, and the bytes that they send.
//
// It lies in memory without a name, which a process finds through the one that made it. So nothing
// is left behind, however the ranks end.
//
// Threads: any. Nothing here waits or locks: a rank that is killed leaves the others as they are.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ckpt::test {

class SharedTeam {
 public:
  static constexpr std::size_t broadcasts_max = 1024;

  // The words by which ranks open it. The maker's process keeps it until it ends.
  static std::string make();
  // Null: the words lead to no team.
  static std::unique_ptr<SharedTeam> open(const std::string& words);
  SharedTeam(const SharedTeam&) = delete;
  SharedTeam& operator=(const SharedTeam&) = delete;
  ~SharedTeam();

  void join() { ++shared_->joined; }
  std::size_t joined() const { return shared_->joined; }
  // By an abort that all learn of.
  void break_up() { shared_->is_broken = true; }
  bool is_broken() const { return shared_->is_broken; }

  // A rank comes to its broadcast of this number. First: no other rank has come to it. None: the
  // others send from another root, or another number of bytes.
  struct Arrival {
    bool is_first = false;
  };
  std::optional<Arrival> arrive(std::size_t number, int root, std::size_t bytes);
  // Once all that the rank says of the broadcast is said.
  void be_there(std::size_t number) { ++of(number).arrived; }
  std::size_t arrived(std::size_t number) { return of(number).arrived; }

  // Damages the bytes of the root on their way.
  void corrupt(std::size_t number) { of(number).is_corrupt = true; }
  void deliver(std::size_t number, const std::vector<std::byte>& content);
  bool is_delivered(std::size_t number) { return of(number).is_delivered; }
  std::vector<std::byte> delivered(std::size_t number, std::size_t bytes);

 private:
  struct Broadcast {
    std::atomic<std::uint64_t> call;  // Root and bytes; 0: no rank has come.
    std::atomic<std::uint64_t> place;
    std::atomic<std::uint32_t> arrived;
    std::atomic<bool> is_corrupt;
    std::atomic<bool> is_delivered;
  };
  // New memory is zero, and so is all of this at first.
  struct Shared {
    std::atomic<std::uint64_t> end;  // Contents lie behind this, up to here.
    std::atomic<std::uint32_t> joined;
    std::atomic<bool> is_broken;
    Broadcast broadcasts[broadcasts_max];
  };

  SharedTeam(int file, Shared* shared) : file_(file), shared_(shared) {}
  Broadcast& of(std::size_t number);

  const int file_;
  Shared* const shared_;
};

}  // namespace ckpt::test
