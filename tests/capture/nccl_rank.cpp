// One rank in a process of its own, with memory on a GPU of the stand-in driver. It does what its
// standard input says, a line each, and answers each with one line:
//
//   id | join RANK RANKS ID MS | broadcast ROOT MS | has ROOT | close MS | quiet | violations
//
// "ok", "yes", "no", what was asked for, or an error: its code, and its text.
#include <fmt/format.h>

#include <ckpt/gpu_ranks.hpp>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include "support/cuda_stand_in/stand_in.hpp"
#include "support/nccl_stand_in/nccl_team.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t sizes_of_parts[] = {1, 300, 70'000, (4 << 20) + 1};

class RankProcess {
 public:
  RankProcess() : trainer_("devices=1"), ranks_(open()) {
    for (const std::size_t bytes : sizes_of_parts)
      parts_.push_back({trainer_.allocate(bytes), bytes});
  }

  std::string answer(std::istream& line) {
    std::string word;
    line >> word;
    if (word == "id") return id();
    if (word == "join") return join(line);
    if (word == "broadcast") return broadcast(line);
    if (word == "has") return has(line);
    if (word == "close") return said(ranks_.close(time(line)));
    if (word == "quiet") return ranks_.is_quiet() ? "yes" : "no";
    if (word == "violations")
      return std::string(stand_in().violations()) + nccl_stand_in().violations();
    return "no such word: " + word;
  }

 private:
  static GpuRanks open() {
    (void)nccl_stand_in();  // It says where it lies.
    GpuRanks::Options options;
    options.abort_patience = long_enough;
    return GpuRanks::open(options).value();
  }
  static std::string said(const Status& status) {
    if (status) return "ok";
    return fmt::format("{}: {}", to_string(status.error().code()), status.error().text());
  }
  static milliseconds time(std::istream& line) {
    std::int64_t count = 0;
    line >> count;
    return milliseconds(count);
  }
  static std::vector<std::byte> content_of(std::uint64_t rank, std::size_t part) {
    return random_bytes(sizes_of_parts[part], 100 * rank + part + 1);
  }

  std::string id() {
    const auto made = ranks_.make_id(long_enough);
    if (!made) return said(fail(Error(made.error())));
    std::string text;
    for (const std::byte each : *made) text += fmt::format("{:02x}", static_cast<unsigned>(each));
    return text;
  }
  std::string join(std::istream& line) {
    GpuRanks::Place place;
    std::string text;
    line >> place.rank >> place.ranks >> text;
    place.timeout = time(line);
    for (std::size_t at = 0; at < place.id.size(); ++at)
      place.id[at] = static_cast<std::byte>(std::stoul(text.substr(2 * at, 2), nullptr, 16));
    for (std::size_t part = 0; part < parts_.size(); ++part)
      trainer_.write(static_cast<std::byte*>(parts_[part].data), content_of(place.rank, part));
    ranks_ = open();  // They join once.
    return said(ranks_.join(place));
  }
  std::string broadcast(std::istream& line) {
    GpuBroadcast order;
    line >> order.root;
    order.timeout = time(line);
    order.parts = parts_;
    order.after = trainer_.stream();
    return said(ranks_.broadcast(order));
  }
  std::string has(std::istream& line) {
    std::uint64_t rank = 0;
    line >> rank;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      const auto* data = static_cast<const std::byte*>(parts_[part].data);
      if (trainer_.read(data, parts_[part].bytes) != content_of(rank, part)) return "no";
    }
    return "yes";
  }

  StandInTrainer trainer_;
  GpuRanks ranks_;
  std::vector<GpuPart> parts_;
};

}  // namespace

}  // namespace ckpt::test

int main() {
  ckpt::test::RankProcess rank;
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    std::cout << rank.answer(line) << std::endl;
  }
}
