#include "device/cuda_order.hpp"

#include <algorithm>

namespace ckpt::device {

namespace {

// The handles that mean a default stream of whatever context is current.
bool is_default(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

CudaOrder::~CudaOrder() {
  for (const auto& [context, event] : events_) {
    const CudaScope scope(driver_, context);
    (void)driver_.destroy_event(event);
  }
}

Result<std::vector<CudaOrder::Queue>> CudaOrder::queues_of(Stream stream) const {
  const auto handle = static_cast<CUstream>(stream.handle);
  std::vector<Queue> queues;
  queues.push_back({handle, context_});
  if (is_default(handle)) return queues;
  CUcontext owner = nullptr;
  CKPT_CHECK(driver_.check(driver_.context_of_stream(handle, &owner),
                           "find the GPU of the stream that was passed"));
  queues.front().context = owner;
  if (owner != context_) queues.push_back({nullptr, context_});
  return queues;
}

Result<bool> CudaOrder::is_captured(Stream stream) const {
  CKPT_TRY(const auto queues, queues_of(stream));
  for (const Queue& queue : queues) {
    const CudaScope scope(driver_, queue.context);
    CKPT_CHECK(scope.status());
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver_.is_capturing(queue.stream, &status);
    // The default stream, while another stream of the context is captured.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
    CKPT_CHECK(driver_.check(result, "ask whether the stream is being captured"));
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) return true;
  }
  return false;
}

Result<CUevent> CudaOrder::event_of(CUcontext context) {
  const auto found = std::find_if(events_.begin(), events_.end(),
                                  [&](const auto& known) { return known.first == context; });
  if (found != events_.end()) return found->second;
  CUevent event = nullptr;
  CKPT_CHECK(
      driver_.check(driver_.create_event(&event, CU_EVENT_DISABLE_TIMING), "create an event"));
  events_.emplace_back(context, event);
  return event;
}

Status CudaOrder::follow(CUstream ours, Stream stream) {
  CKPT_TRY(const auto queues, queues_of(stream));
  for (const Queue& queue : queues) {
    const CudaScope scope(driver_, queue.context);
    CKPT_CHECK(scope.status());
    CKPT_TRY(const CUevent event, event_of(queue.context));
    CKPT_CHECK(driver_.check(driver_.record_event(event, queue.stream),
                             "record an event on the trainer's stream"));
    CKPT_CHECK(driver_.check(driver_.wait_event(ours, event, CU_EVENT_WAIT_DEFAULT),
                             "let the copies wait for the trainer's stream"));
  }
  return {};
}

Status CudaOrder::precede(CUevent event, Stream stream) {
  CKPT_TRY(const auto queues, queues_of(stream));
  for (const Queue& queue : queues) {
    const CudaScope scope(driver_, queue.context);
    CKPT_CHECK(scope.status());
    CKPT_CHECK(driver_.check(driver_.wait_event(queue.stream, event, CU_EVENT_WAIT_DEFAULT),
                             "let the trainer's stream wait for the copies"));
  }
  return {};
}

}  // namespace ckpt::device
