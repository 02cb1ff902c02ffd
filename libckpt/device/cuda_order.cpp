#include "device/cuda_order.hpp"

namespace ckpt::device {

namespace {

// Handles that mean the default stream of the current context, whichever that is.
bool is_default(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

}  // namespace

void CudaOrder::close(bool has_context) {
  if (event_ != nullptr && has_context) (void)driver_.destroy_event(event_);
  event_ = nullptr;
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
    // It is the default stream, while another stream of the context is being captured.
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
    CKPT_CHECK(driver_.check(result, "ask whether the stream is being captured"));
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) return true;
  }
  return false;
}

Status CudaOrder::follow(CUstream ours, Stream stream) {
  CKPT_TRY(const auto queues, queues_of(stream));
  for (const Queue& queue : queues) CKPT_CHECK(follow_one(ours, queue));
  return {};
}

Status CudaOrder::follow_one(CUstream ours, const Queue& queue) {
  const CudaScope scope(driver_, queue.context);
  CKPT_CHECK(scope.status());
  const bool is_kept = queue.context == context_;
  CUevent event = is_kept ? event_ : nullptr;
  if (event == nullptr)
    CKPT_CHECK(
        driver_.check(driver_.create_event(&event, CU_EVENT_DISABLE_TIMING), "create an event"));
  if (is_kept) event_ = event;
  CUresult result = driver_.record_event(event, queue.stream);
  const bool is_recorded = result == CUDA_SUCCESS;
  if (is_recorded) result = driver_.wait_event(ours, event, CU_EVENT_WAIT_DEFAULT);
  // A wait that is already queued keeps the meaning that the event had then.
  if (!is_kept) (void)driver_.destroy_event(event);
  return driver_.check(result, is_recorded ? "let the copies wait for the trainer's stream"
                                           : "record an event on the trainer's stream");
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
