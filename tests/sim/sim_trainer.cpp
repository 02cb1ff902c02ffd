#include "sim/sim_trainer.hpp"
#include "format/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "base/checksum.hpp"
#include "base/log.hpp"
#include "base/overloaded.hpp"
#include "format/piece.hpp"
#include "plan/share.hpp"

namespace ckpt::sim {

namespace {

constexpr Duration tick = std::chrono::milliseconds(10);
constexpr Duration begin_deadline = std::chrono::seconds(120);
constexpr Duration look_time_max = std::chrono::seconds(1);

// The rank's even part of a tensor that has as many bytes for each of three ranks.
FlatRange part_of(const TrainerPlan& plan) {
  const std::uint64_t all = 3 * plan.tensor_bytes;
  const std::uint64_t begin = all * plan.request.rank / plan.request.world_size;
  return {begin, all * (plan.request.rank + 1) / plan.request.world_size - begin};
}

FlatRange wanted_by(const TrainerPlan& plan) {
  if (plan.has_copy) return {0, 3 * plan.tensor_bytes};
  return plan.has_part ? part_of(plan) : FlatRange{0, plan.tensor_bytes};
}

// The share of a copy that the library gives this rank to capture; none: other ranks have all.
FlatRange captured_by(const TrainerPlan& plan) {
  if (!plan.has_copy) return wanted_by(plan);
  const Region whole = wanted_by(plan);
  const auto share = plan::share_of(
      {"weight", DType::u8, whole, {}, plan.request.rank, plan.request.world_size}, 0);
  return share ? std::get<FlatRange>(share->region) : FlatRange{};
}

format::Layout layout_for(const TrainerPlan& plan, const FlatRange& range) {
  format::TensorSpec spec;
  spec.name = "weight";
  spec.dtype = DType::u8;
  spec.shape = {static_cast<std::int64_t>(range.count)};
  if (plan.has_part || plan.has_copy) {
    Piece piece;
    piece.global_shape = {3 * plan.tensor_bytes};
    piece.flat_begin = range.begin;
    spec.piece = format::normalized(piece, spec.shape);
  }
  const std::vector<format::TensorSpec> specs{spec};
  auto layout = format::make_layout(specs, plan.request.rank, 0);
  CKPT_ASSERT(layout.has_value());
  return std::move(*layout);
}

std::vector<std::byte> random_bytes(std::uint64_t seed, std::uint64_t count) {
  std::vector<std::byte> bytes(count);
  Random content(seed);
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = content.next();
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
  }
  return bytes;
}

}  // namespace

// A part of the tensor at one step.
std::vector<std::byte> SimTrainer::expected_at(std::uint64_t timeline, Step step,
                                               const FlatRange& range) const {
  const std::uint64_t seed = (number(step) << 20) ^ (timeline << 8);
  const bool is_its_own = !plan_.has_part && !plan_.has_copy;
  std::vector<std::byte> bytes =
      random_bytes(is_its_own ? seed ^ rank() : seed, range.begin + range.count);
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(range.begin));
  if (!plan_.is_frozen) return bytes;
  // The bytes of one step in seven, but for the last fifth.
  const std::uint64_t thawed = (number(step) / 7 << 20) ^ (timeline << 8) ^ rank();
  const std::vector<std::byte> frozen = random_bytes(~thawed, bytes.size() * 4 / 5);
  std::ranges::copy(frozen, bytes.begin());
  return bytes;
}

control::AskRestore SimTrainer::ask(std::optional<Step> wanted) {
  control::AskRestore asked{++ask_, wanted};
  if (plan_.has_copy) asked.tensors = wanted_;
  return asked;
}

SimTrainer::SimTrainer(TrainerPlan plan, std::shared_ptr<node::Engine> engine, Clock& clock,
                       Oracle& oracle)
    : plan_(std::move(plan)),
      engine_(std::move(engine)),
      clock_(clock),
      oracle_(oracle),
      random_(plan_.seed),
      layout_(layout_for(plan_, captured_by(plan_))),
      wanted_(layout_for(plan_, wanted_by(plan_))) {
  if (!plan_.trains_on) return;
  began_ = plan_.trains_on->begun;
  begun_ = began_;
  base_ = began_.restored;
  timeline_ = began_.timeline;
  done_ = plan_.trains_on->done;
}

Task<void> SimTrainer::pause(Duration least, Duration most) {
  const auto span = static_cast<std::uint64_t>((most - least).count());
  const Duration length = least + Duration(random_.below(span + 1));
  return sleep_until(clock_, clock_.after(length));
}

asio::awaitable<void> SimTrainer::run() {
  const std::shared_ptr<SimTrainer> self = shared_from_this();
  Status began = co_await attach();
  if (began && !plan_.trains_on) began = co_await begin();
  Status trained;
  if (began && !is_dead_) trained = co_await train();
  if (is_dead_) co_return;
  const Status& ended = began ? trained : began;
  log_info("trainer of rank {} ends: {}", rank(), ended ? "" : ended.error().message());
  has_failed_ = true;
}

TrainerPlan SimTrainer::plan_to_train_on() const {
  CKPT_ASSERT(is_training());
  TrainerPlan plan = plan_;
  plan.trains_on = TrainsOn{began_, done_};
  plan.request.continuation = control::Continuation{began_.start_id, timeline_};
  return plan;
}

Task<void> SimTrainer::attach() {
  auto attached = co_await engine_->attach(plan_.request, *this);
  if (!attached) co_return fail(std::move(attached).error());
  session_ = attached->session;
  if (is_dead_) {
    engine_->detach(*session_);  // The daemon sees that the process is gone.
    co_return fail(Errc::cancelled, "killed");
  }
  CKPT_CO_CHECK(call(control::SetLayout{layout_}));
  co_return Status{};
}

Task<void> SimTrainer::begin() {
  for (const Step step : plan_.looked_at) {
    CKPT_CO_CHECK(co_await look_at(step));
  }
  CKPT_CO_CHECK(call(ask(plan_.wanted)));
  CKPT_CO_CHECK(co_await wait_begun());
  const bool is_unsupported = !begun_->result && begun_->result.error().code() == Errc::unsupported;
  if (is_unsupported && !plan_.wanted) {
    // A part of what other ranks saved is gone for good: the user begins without it.
    was_unsupported_ = true;
    begun_.reset();
    CKPT_CO_CHECK(call(control::StartFresh{++ask_}));
    CKPT_CO_CHECK(co_await wait_begun());
  }
  if (!begun_->result) co_return begun_->result;
  timeline_ = begun_->timeline;
  done_ = begun_->restored ? begun_->restored->step : Step{0};
  began_ = *begun_;
  oracle_.began(rank(), plan_.group, *begun_);
  co_return Status{};
}

Task<void> SimTrainer::wait_begun() {
  const Time deadline = clock_.after(begin_deadline);
  while (!begun_) {
    if (offer_ && !slots_.empty()) {
      CKPT_CO_CHECK(co_await pause(Duration(0), std::chrono::milliseconds(20)));
      if (is_dead_) co_return fail(Errc::cancelled, "killed");
      const control::Offer offer = *std::exchange(offer_, std::nullopt);
      is_mixed_ = offer.bytes_from_storage > 0 && offer.bytes_from_storage < offer.record->bytes;
      CKPT_CO_CHECK(call(control::RestoreResult{offer.offer, check(offer)}));
    }
    CKPT_CO_CHECK(co_await sleep_until(clock_, clock_.after(tick)));
    if (is_dead_ || is_fenced_) co_return fail(Errc::cancelled, "killed");
    if (clock_.now() > deadline) co_return fail(Errc::unavailable, "did not begin in time");
  }
  co_return Status{};
}

// Asks for a step, and for another one as soon as it is offered this one, or cannot have it.
Task<void> SimTrainer::look_at(Step step) {
  CKPT_CO_CHECK(call(ask(step)));
  const Time deadline = clock_.after(look_time_max);
  while (!offer_ && !begun_ && clock_.now() < deadline) {
    CKPT_CO_CHECK(co_await sleep_until(clock_, clock_.after(tick)));
    if (is_dead_ || is_fenced_) co_return fail(Errc::cancelled, "killed");
  }
  offer_.reset();
  begun_.reset();
  co_return Status{};
}

// I2: the bytes are checked against what was captured, not only against their checksums.
Status SimTrainer::check(const control::Offer& offer) {
  const auto bytes = slots_.at(offer.slot).memory->bytes();
  for (std::size_t index = 0; index < offer.record->chunk_crcs.size(); ++index) {
    const format::Extent chunk = offer.record->chunk(index);
    if (crc32(bytes.subspan(chunk.offset, chunk.bytes)) != offer.record->chunk_crcs[index]) {
      return fail(Errc::corruption, "a chunk does not match");
    }
  }
  const format::Extent tensor = wanted_.tensors.at(0).extent;
  const format::StepId at = offer.record->id.at;
  const std::vector<std::byte> expected = expected_at(at.timeline, at.step, wanted_by(plan_));
  CKPT_ASSERT(expected.size() == tensor.bytes);
  if (offer.record->layout.tensors.at(0).extent != tensor ||
      std::memcmp(expected.data(), bytes.data() + tensor.offset, tensor.bytes) != 0) {
    oracle_.violated(fmt::format("I2: rank {} was offered wrong bytes for timeline {} step {}",
                                 rank(), at.timeline, number(at.step)));
  }
  return {};
}

Task<void> SimTrainer::train() {
  const bool has_restored = begun_->restored.has_value();
  while (true) {
    CKPT_CO_CHECK(co_await pause(std::chrono::milliseconds(20), std::chrono::milliseconds(80)));
    if (is_dead_ || is_fenced_) co_return fail(Errc::cancelled, "killed");
    const Step step{number(done_) + 1};
    if (step > allowed_) continue;
    if (plan_.retracts_one_in != 0 && random_.one_in(plan_.retracts_one_in)) {
      CKPT_CO_CHECK(co_await retract());
    }
    oracle_.came_to({timeline_, step});
    if (!is_due(step)) {
      oracle_.skipped(plan_.group, {timeline_, step});
      if (number(done_) > 0) CKPT_CO_CHECK(call(control::Skipped{done_}));
      CKPT_CO_CHECK(call(control::Passed{step}));
      done_ = step;
      continue;
    }
    const bool skips = plan_.skip_one_in != 0 && random_.one_in(plan_.skip_one_in);
    if (skips || granted_.empty() || step < next_capture_) {
      oracle_.skipped(plan_.group, {timeline_, step});
      CKPT_CO_CHECK(call(control::Skipped{step}));
    } else {
      const std::uint32_t slot = granted_.front();
      granted_.erase(granted_.begin());
      captured_for_ = next_capture_;
      CKPT_CO_CHECK(co_await capture(step, slot));
    }
    done_ = step;
    if (step >= Step{3} && has_restored) (void)call(control::RestoredOk{step});
  }
}

// By time, each order of the coordinator is good for one capture, as in the library.
bool SimTrainer::is_due(Step step) const {
  if (plan_.request.save_mem_interval.steps > 0) return true;
  return step >= next_capture_ && captured_for_ != next_capture_;
}

// Asks for a restore in the middle of training, waits no longer, and trains on.
Task<void> SimTrainer::retract() {
  const bool has_base = begun_->restored.has_value();
  std::optional<Step> wanted;
  if (random_.one_in(2)) wanted = Step{1'000'000};  // Nobody ever had it.
  CKPT_CO_CHECK(call(ask(wanted)));
  CKPT_CO_CHECK(co_await pause(Duration(0), std::chrono::milliseconds(200)));
  if (is_dead_ || is_fenced_) co_return fail(Errc::cancelled, "killed");
  offer_.reset();
  CKPT_CO_CHECK(call(control::StartFresh{++ask_}));
  const bool goes_on = begun_->result && begun_->timeline == timeline_;
  if (!goes_on && has_base) {
    oracle_.violated(fmt::format("rank {}: a restore that was given up moved it from timeline {}",
                                 rank(), timeline_));
  }
  if (!goes_on) co_return fail(Errc::unavailable, "it began anew");
  co_return Status{};
}

Task<void> SimTrainer::capture(Step step, std::uint32_t slot) {
  const std::uint64_t generation = slots_.at(slot).generation;
  CKPT_CO_CHECK(call(control::Begin{slot, generation, step}));
  const auto bytes = slots_.at(slot).memory->bytes();
  const format::Extent tensor = layout_.tensors.at(0).extent;
  format::HeaderFacts facts;
  facts.job = plan_.request.job;
  facts.run = to_hex(Digest{});
  facts.step = step;
  facts.timeline = timeline_;
  CKPT_CO_TRY(const auto header, format::render_header(layout_, facts));
  // The padding too, as the library does: what flipped in it must not be sealed.
  std::ranges::fill(bytes.first(format::covered_bytes(layout_, 0)), std::byte{});
  std::memcpy(bytes.data(), header.data(), header.size());
  // Killed in mid-copy, it leaves half of the new bytes over the old.
  const std::vector<std::byte> expected = expected_at(timeline_, step, captured_by(plan_));
  std::memcpy(bytes.data() + tensor.offset, expected.data(), tensor.bytes / 2);
  CKPT_CO_CHECK(co_await pause(Duration(0), std::chrono::milliseconds(10)));
  if (is_dead_ || is_fenced_) co_return fail(Errc::cancelled, "killed");
  std::memcpy(bytes.data() + tensor.offset, expected.data(), tensor.bytes);
  control::Filled filled;
  filled.slot = slot;
  filled.generation = generation;
  filled.step = step;
  filled.chunk_bytes = plan_.chunk_bytes;
  if (!random_.one_in(plan_.lets_daemon_hash_one_in)) {
    const std::uint64_t covered = format::covered_bytes(layout_, 0);
    for (std::uint64_t at = 0; at < covered; at += plan_.chunk_bytes) {
      filled.chunk_crcs.push_back(
          crc32(bytes.subspan(at, std::min(plan_.chunk_bytes, covered - at))));
    }
  }
  ++captures_;
  CKPT_CO_CHECK(call(std::move(filled)));
  co_return Status{};
}

void SimTrainer::wake_as_zombie() {
  if (!session_) return;
  const Status begun = call(control::Begin{0, 0, Step{1'000'000}});
  const Status asked = call(control::AskRestore{1, std::nullopt});
  if (begun || asked) {
    oracle_.violated(fmt::format("I5: a fenced trainer of rank {} was obeyed", rank()));
  }
}

void SimTrainer::slots_ready(std::vector<node::ReadySlot> slots) {
  // Grants of Slots that were replaced, which they are all at once, are void; the others hold.
  const std::size_t bytes = slots.empty() ? 0 : slots.front().memory->bytes().size();
  if (slot_bytes_ != bytes) granted_.clear();
  slot_bytes_ = bytes;
  slots_ = std::move(slots);
}

void SimTrainer::tell(control::Event event) {
  std::visit(Overloaded{
                 [&](control::SlotsFailed&) { has_failed_ = true; },
                 [&](control::Granted& it) { granted_.push_back(it.slot); },
                 [&](control::NextCapture& it) { next_capture_ = it.step; },
                 [&](control::LevelReached& it) { take(it); },
                 [&](control::StepDropped& it) {
                   if (!is_dead_) oracle_.dropped(plan_.group, {timeline_, it.step});
                 },
                 [&](control::Offer& it) { take(std::move(it)); },
                 [&](control::Begun& it) { take(std::move(it)); },
                 [&](control::Closed&) { is_closed_ = true; },
                 [&](control::Fenced&) { is_fenced_ = true; }, [](auto&) {},  // For people.
             },
             event);
}

void SimTrainer::take(control::LevelReached reached) {
  const auto [step, level] = reached;
  if (is_dead_) return;
  // The levels of the step that was restored are sent as well.
  const bool is_base = base_ && step <= base_->step;
  const bool has_begun = begun_ && begun_->result;
  const std::uint64_t timeline = has_begun ? begun_->timeline : timeline_;
  // A step that storage had before the base belongs to an older timeline.
  if (base_ && level == Level::durable && step < base_->step) return;
  oracle_.reached(rank(), {is_base ? base_->timeline : timeline, step}, level, is_base);
}

void SimTrainer::take(control::Offer offer) {
  if (offer.ask == ask_) offer_ = std::move(offer);
}

void SimTrainer::take(control::Begun begun) {
  if (begun.ask != ask_) return;  // From a restore that it waits for no longer.
  granted_.clear();               // The restore may have taken them; what is free is granted again.
  if (begun.result && begun.timeline != timeline_) {
    next_capture_ = Step{};
    captured_for_.reset();
  }
  if (begun.restored) base_ = begun.restored;
  begun_ = std::move(begun);
}

}  // namespace ckpt::sim
