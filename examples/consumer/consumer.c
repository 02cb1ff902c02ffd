/* The same from C, by the stable ABI. */
#include <ckpt.h>
#include <stdio.h>
#include <stdlib.h>

static void need(int code, const char* doing) {
  if (code == CKPT_OK) return;
  fprintf(stderr, "%s: %s\n", doing, ckpt_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  static float weights[100000];
  const int64_t shape[2] = {100, 1000};
  ckpt_stats_values stats = {.size = sizeof stats};
  ckpt_handle* handle = NULL;
  ckpt_options* options = ckpt_options_new();

  need(ckpt_options_set(options, "job", "consumer-c"), "job");
  need(ckpt_options_set(options, "embedded", "true"), "embedded");
  need(ckpt_options_set(options, "memory_budget", "268435456"), "memory_budget");
  if (argc > 1) need(ckpt_options_set(options, "runtime_dir", argv[1]), "runtime_dir");
  need(ckpt_open(options, &handle), "open");
  ckpt_options_free(options);
  need(ckpt_add(handle, "weights", weights, CKPT_DTYPE_F32, shape, 2, 0), "add");
  need(ckpt_save(handle, 1, NULL, NULL), "save");
  need(ckpt_guard(handle, NULL), "guard");
  need(ckpt_wait(handle, 1, CKPT_CAPTURED, 30000), "wait");
  need(ckpt_stats(handle, &stats), "stats");
  need(ckpt_close(handle, 60000), "close");
  ckpt_free(handle);
  printf("consumer in C: libckpt %s captured %llu bytes\n", ckpt_version(),
         (unsigned long long)stats.bytes_captured);
  return stats.bytes_captured >= 400000 ? 0 : 1;
}
