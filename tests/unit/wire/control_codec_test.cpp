// Goal:   what a trainer and its daemon tell one another arrives as it was sent, and no bytes,
//         however damaged, are believed or allocated for.
// Method: send one message of each kind through encode and decode and compare the encodings, also
//         with those in tests/golden (`unit_wire "[write-golden]"` writes them anew, for another
//         version of the protocol); then cut, grow and flip the bytes of a rich one, and require a
//         refusal or the same meaning.
#include "wire/control_codec.hpp"

#include <catch2/catch.hpp>
#include <ckpt/version.hpp>
#include <fstream>
#include <iterator>

#include "base/units.hpp"
#include "format/codec.hpp"

namespace ckpt::wire::control {
namespace {

format::Layout small_layout() {
  std::vector<format::TensorSpec> tensors(2);
  tensors[0] = {"weight", DType::f32, {64, 16}, ""};
  tensors[1] = {"bias", DType::f32, {16}, ""};
  return format::make_layout(tensors, 3, 4096).value();
}

std::shared_ptr<const format::ShardRecord> small_record() {
  auto record = std::make_shared<format::ShardRecord>();
  record->job = "gpt2";
  record->id = {{2, Step{900}}, 3};
  record->world_size = 4;
  record->layout = small_layout();
  record->model = format::fingerprint(record->layout);
  record->bytes = record->layout.slot_bytes;
  record->chunk_bytes = default_chunk_bytes;
  record->chunk_crcs.assign(div_ceil(record->bytes, record->chunk_bytes), 0x12345678);
  return record;
}

Attach full_attach() {
  Attach attach;
  attach.start_time = 4711;
  attach.job = "gpt2";
  attach.dir = "/checkpoints/gpt2";
  attach.rank = 3;
  attach.world_size = 4;
  attach.nodes = {{"A", "rack-1", "10.0.0.1:7711"}, {"B", "rack-2", "10.0.0.2:7711"}};
  attach.node = "B";
  attach.incarnation = 2;
  attach.save_mem_interval = {1, {}};
  attach.save_storage_interval = {0, std::chrono::minutes(15)};
  attach.max_ckpt_num = 3;
  attach.keep_every = {{100, 1000}, {500, {}}};
  attach.keep_best = 2;
  attach.best_metric = "loss";
  attach.best_is_greatest = true;
  attach.replicas = 2;
  attach.own_slots = 3;
  attach.flush_rate = 500 * MiB;
  attach.replica_rate = 2 * GiB;
  attach.skip_unchanged = true;
  attach.compression = "zstd:3";
  attach.secret_file = "/etc/secret";
  attach.continuation = Continuation{2, 3};
  return attach;
}

Filled full_filled() {
  Filled filled;
  filled.slot = 1;
  filled.generation = 77;
  filled.step = Step{900};
  filled.layout_version = 2;
  filled.blob_bytes = 24;
  filled.blobs = {{4096, 16}, {4112, 8}};
  filled.blob_names = {"rng", "position"};
  filled.chunk_bytes = 4 * MiB;
  filled.chunk_crcs = {1, 2, 3};
  filled.copies = {{"norm", {8, 9}, 10}};
  return filled;
}

HeldStep full_held_step() {
  HeldStep step;
  step.result = fail(Errc::unavailable, "rank 3 is not there");
  step.run = {6, 7};
  step.at = {2, Step{900}};
  step.digests = {{1, 2}, {3, 4}};
  step.members = {8, 9};
  step.nodes = {"A", "B"};
  step.directory = "/ckpt/gpt2";
  step.timelines = "{}";
  return step;
}

// One of each kind, in the protocol's order, every field different from its default.
std::vector<Message> one_of_each() {
  const Status bad = fail(Errc::corruption, "chunk 17 does not match its checksum");
  std::vector<Message> all;
  all.emplace_back(our_hello());
  all.emplace_back(full_attach());
  all.emplace_back(SetLayout{small_layout()});
  all.emplace_back(Begin{1, 77, Step{900}});
  all.emplace_back(full_filled());
  all.emplace_back(Abandon{1, 77});
  all.emplace_back(Skipped{Step{901}});
  all.emplace_back(StartFresh{3});
  all.emplace_back(AskRestore{4, Step{900}, true, small_layout(), SourceChoice::storage});
  all.emplace_back(RestoreResult{7, bad});
  all.emplace_back(RestoredOk{Step{900}});
  all.emplace_back(Close{std::chrono::seconds(60)});
  all.emplace_back(Goodbye{});
  all.emplace_back(AttachAnswer{bad, 5, {6, 7}});
  all.emplace_back(SlotSegments{1, 77, 3 * GiB, 1, 3, {GiB, GiB}});
  all.emplace_back(SlotsReady{3, 2});
  all.emplace_back(SlotsFailed{bad});
  all.emplace_back(Granted{2});
  all.emplace_back(NextCapture{Step{950}});
  all.emplace_back(LevelReached{Step{900}, Level::committed});
  all.emplace_back(StepDropped{Step{899}});
  all.emplace_back(Offer{5, 7, 1, RestoreSource::peer_memory, "node B", 4, 4096, small_record()});
  all.emplace_back(
      Begun{6, 2, 3, format::StepId{2, Step{900}}, bad, "newest common step", Step{903}});
  all.emplace_back(Closed{bad});
  all.emplace_back(Fenced{"pid 77 took over rank 3"});
  all.emplace_back(AskStatus{});
  all.emplace_back(AskRecover{"gpt2"});
  all.emplace_back(Stop{std::chrono::seconds(30), false});
  all.emplace_back(Drop{"gpt2"});
  all.emplace_back(Answer{{}, "{\"jobs\":[]}"});
  all.emplace_back(Arrived{1, 77, 5 * GiB});
  all.emplace_back(Flush{Step{900}});
  all.emplace_back(Notice{"rank 1 is not attached", "lost: B; 1 of 2 copies", "\"norm\" differs"});
  all.emplace_back(Filling{3 * GiB, 5 * GiB, "node B"});
  all.emplace_back(StepTime{20, std::chrono::nanoseconds(51'234'567), true});
  all.emplace_back(OpenHeld{"gpt2", Step{900}});
  all.emplace_back(full_held_step());
  all.emplace_back(AskRecord{3});
  all.emplace_back(HeldRecord{bad, {std::byte{1}, std::byte{2}}});
  all.emplace_back(AskChunks{3, {0, 5}});
  all.emplace_back(HeldChunk{bad, {std::byte{3}}});
  all.emplace_back(Passed{Step{902}});
  return all;
}

// As it is, with the descriptors that it needs.
os::LocalMessage sent(const Message& message) {
  auto encoded = encode(message).value();
  if (const auto* segments = std::get_if<SlotSegments>(&message))
    encoded.descriptors.resize(segments->bytes.size());
  return encoded;
}

const std::string golden_path = std::string(CKPT_GOLDEN_DIR) + "/local15.control_messages";

// One of each kind as it travels: its kind, the length of its body, its body.
std::string golden_bytes() {
  format::Writer out;
  auto all = one_of_each();
  all.front() = Hello{6, "0.1.0"};
  for (const Message& message : all) {
    const auto encoded = encode(message).value();
    out.u32(encoded.kind);
    out.count(encoded.body.size());
    out.raw(encoded.body);
  }
  const auto bytes = out.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("control codec: today's encoder makes yesterday's bytes", "[unit][wire]") {
  std::ifstream file(golden_path, std::ios::binary);
  const std::string stored((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
  REQUIRE_FALSE(stored.empty());
  CHECK((stored == golden_bytes()));
}

TEST_CASE("control codec: golden bytes, written anew", "[.][write-golden]") {
  std::ofstream file(golden_path, std::ios::binary | std::ios::trunc);
  file << golden_bytes();
  CHECK(file.good());
}

TEST_CASE("control codec: every kind of message arrives as it was sent", "[unit][wire]") {
  const auto all = one_of_each();
  REQUIRE(all.size() == std::variant_size_v<AnyMessage>);
  for (std::size_t index = 0; index < all.size(); ++index) {
    INFO(name_of(all[index]));
    REQUIRE(kind_of(all[index]).number == index + 1);
    const auto message = sent(all[index]);
    const auto back = decode(message);
    REQUIRE(back);
    CHECK(kind_of(*back).number == index + 1);
    CHECK(encode(*back)->body == message.body);
  }
}

TEST_CASE("control codec: fields keep their meaning", "[unit][wire]") {
  const auto attach = std::get<Attach>(decode(sent(full_attach())).value());
  CHECK(attach.nodes.at(1).failure_domain == "rack-2");
  CHECK(attach.save_storage_interval.time == std::chrono::minutes(15));
  CHECK(attach.secret_file == "/etc/secret");
  const Status cause =
      fail(Errc::io, "open /checkpoints", std::make_error_code(std::errc::io_error));
  const auto answer = std::get<Answer>(decode(sent(Answer{cause, ""})).value());
  REQUIRE_FALSE(answer.result);
  CHECK(answer.result.error().code() == Errc::io);
  CHECK(answer.result.error().text() == "open /checkpoints (Input/output error)");
}

TEST_CASE("control codec: the longest duration there is can be added to the time", "[unit][wire]") {
  Close close;
  close.deadline = std::chrono::milliseconds::max();
  const auto told = std::get<Close>(decode(sent(close)).value());
  CHECK(told.deadline > std::chrono::years(50));
  CHECK(told.deadline < std::chrono::years(150));  // Of the 292 that nanoseconds have.
}

TEST_CASE("control codec: a cut or grown body is refused", "[unit][wire]") {
  for (const Message& message : {Message(full_attach()), Message(full_filled())}) {
    const auto whole = sent(message);
    for (std::size_t bytes = 0; bytes <= whole.body.size() + 1; ++bytes) {
      os::LocalMessage cut(whole.kind, whole.body);
      cut.body.resize(bytes);
      CHECK(decode(cut).has_value() == (bytes == whole.body.size()));
    }
  }
}

TEST_CASE("control codec: no flipped bit makes it crash or allocate", "[unit][wire]") {
  const auto whole = sent(Offer{5, 7, 1, RestoreSource::storage, "step-1", 4, 0, small_record()});
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < whole.body.size() * 8; ++bit) {
    os::LocalMessage flipped(whole.kind, whole.body);
    flipped.body[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    if (!decode(flipped)) ++refused;
  }
  // The record proves itself; what may pass is a flip in ask, offer, slot, source, its name, and
  // the bytes that came from storage.
  CHECK(refused > whole.body.size() * 8 - (8 + 8 + 4 + 1 + 4 + 6 + 8) * 8);
}

TEST_CASE("control codec: unknown kinds and stray descriptors are refused", "[unit][wire]") {
  CHECK_FALSE(decode(os::LocalMessage(0)));
  CHECK_FALSE(decode(os::LocalMessage(std::variant_size_v<AnyMessage> + 1)));
  auto goodbye = sent(Goodbye{});
  CHECK(decode(goodbye));
  goodbye.descriptors.resize(1);
  CHECK_FALSE(decode(goodbye));
}

TEST_CASE("control codec: segments need one descriptor each", "[unit][wire]") {
  auto segments = sent(SlotSegments{0, 77, 2 * GiB, 0, 2, {GiB, GiB}});
  CHECK(decode(segments));
  for (const std::size_t count : {0, 1, 3}) {
    segments.descriptors.resize(count);
    CHECK_FALSE(decode(segments));
  }
}

TEST_CASE("control codec: another version is named with what to do", "[unit][wire]") {
  CHECK(check_hello(our_hello(), "the daemon"));
  Hello newer = our_hello();
  newer.protocol += 1;
  newer.software = "9.9.9";
  const auto status = check_hello(newer, "the daemon");
  REQUIRE_FALSE(status);
  CHECK(status.error().code() == Errc::version_mismatch);
  CHECK(status.error().text().find("9.9.9") != std::string::npos);
  CHECK(status.error().text().find(CKPT_VERSION_STRING) != std::string::npos);
  CHECK(status.error().text().find("ckpt stop") != std::string::npos);
}

}  // namespace ckpt::wire::control
