/* Goal:   a C program can do all that a C++ trainer can, and no mistake of it crashes the library.
 * Method: first every function with what is not allowed (NULL, unknown names, wrong numbers), then
 * a whole life in embedded mode: open, add, save, wait, close; a second life that restores from
 * storage what the first one saved; one that restores it under other names; one whose tensors have
 * another shape; and one of parts of tensors. Ends with 0 when every check held.
 */
#define _POSIX_C_SOURCE 200809L

#include <ckpt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(claim)                                                                        \
  do {                                                                                      \
    if (!(claim)) {                                                                         \
      fprintf(stderr, "line %d: not true: %s (%s)\n", __LINE__, #claim, ckpt_last_error()); \
      ++failures;                                                                           \
    }                                                                                       \
  } while (0)

static ckpt_options* make_options(const char* directory) {
  char runtime[256];
  char storage[256];
  ckpt_options* options = ckpt_options_new();
  snprintf(runtime, sizeof runtime, "%s/run", directory);
  snprintf(storage, sizeof storage, "%s/ckpt", directory);
  CHECK(options != NULL);
  CHECK(ckpt_options_set(options, "job", "c-abi") == CKPT_OK);
  CHECK(ckpt_options_set(options, "embedded", "true") == CKPT_OK);
  CHECK(ckpt_options_set(options, "runtime_dir", runtime) == CKPT_OK);
  CHECK(ckpt_options_set(options, "dir", storage) == CKPT_OK);
  CHECK(ckpt_options_set(options, "memory_budget", "268435456") == CKPT_OK);
  CHECK(ckpt_options_set(options, "flush_rate", "500MiB") == CKPT_OK);
  CHECK(ckpt_options_set(options, "yield", "auto") == CKPT_OK);
  return options;
}

static void check_refusals(const ckpt_options* good) {
  ckpt_options* options = ckpt_options_new();
  ckpt_handle* handle = NULL;
  ckpt_stats_values stats = {.size = sizeof stats};
  int64_t shape[1] = {4};
  float data[4] = {0};
  int outcome = CKPT_STARTED;

  CHECK(ckpt_options_set(NULL, "job", "x") == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "options is NULL") != NULL);
  CHECK(ckpt_options_set(options, "jbo", "x") == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "jbo") != NULL);
  CHECK(ckpt_options_set(options, "rank", "two") == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "two") != NULL);
  CHECK(ckpt_options_set(options, "rank", "-1") == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_options_set(options, "embedded", "maybe") == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_options_set(options, "yield", "sometimes") == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_options_set(options, "save_mem_interval", "15 parsecs") == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_open(NULL, &handle) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_open(good, NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_open(options, &handle) == CKPT_INVALID_ARGUMENT); /* No job. */
  CHECK(handle == NULL);

  CHECK(ckpt_add(NULL, "a", data, CKPT_DTYPE_F32, shape, 1, 0) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_add_blob(NULL, "a", data, 4) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_set_metric(NULL, "loss", 1) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_prepare(NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_save(NULL, 1, NULL, NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_save_if_needed(NULL, 1, NULL, NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_save(NULL, 1, NULL, &outcome) == CKPT_INVALID_ARGUMENT);
  CHECK(outcome == CKPT_NO_OUTCOME);
  CHECK(ckpt_guard(NULL, NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_wait(NULL, 1, CKPT_CAPTURED, 1) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_restore(NULL, NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_restore_from(NULL, "/tmp", NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_start_fresh(NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_restored_ok(NULL, 1) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_stats(NULL, &stats) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_close(NULL, 1) == CKPT_INVALID_ARGUMENT);
  ckpt_free(NULL);
  ckpt_options_free(NULL);
  ckpt_options_free(options);
}

static void first_life(const ckpt_options* options) {
  ckpt_handle* handle = NULL;
  ckpt_stats_values stats = {.size = sizeof stats};
  float weights[6] = {1, 2, 3, 4, 5, 6};
  double rate = 0.25;
  uint64_t position = 77;
  int64_t shape[2] = {2, 3};
  int outcome = -1;

  CHECK(ckpt_open(options, &handle) == CKPT_OK);
  if (handle == NULL) return;
  CHECK(ckpt_add(handle, "weights", weights, CKPT_DTYPE_F32, shape, 2, CKPT_TENSOR_GUARDED) ==
        CKPT_OK);
  CHECK(ckpt_add(handle, "weights", weights, CKPT_DTYPE_F32, shape, 2, 0) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_add(handle, "none", NULL, CKPT_DTYPE_F32, shape, 2, 0) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_add(handle, "what", weights, 99, shape, 2, 0) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_add(handle, "flag", weights, CKPT_DTYPE_F32, shape, 2, 1u << 30) ==
        CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_add(handle, "rate", &rate, CKPT_DTYPE_F64, NULL, 0, 0) == CKPT_OK);
  CHECK(ckpt_add_blob(handle, "position", &position, sizeof position) == CKPT_OK);
  CHECK(ckpt_set_blob(handle, "note", "hello", 5) == CKPT_OK);
  CHECK(ckpt_set_metric(handle, "loss", 0.25) == CKPT_OK);
  CHECK(ckpt_set_metric(handle, "", 0.25) == CKPT_INVALID_ARGUMENT);

  CHECK(ckpt_restore(handle, NULL) == CKPT_NOT_FOUND);
  CHECK(ckpt_prepare(handle) == CKPT_OK);
  CHECK(ckpt_save_if_needed(handle, 1, NULL, &outcome) == CKPT_OK);
  CHECK(outcome == CKPT_STARTED);
  CHECK(ckpt_guard(handle, NULL) == CKPT_OK);
  CHECK(ckpt_wait(handle, 1, 9, 1000) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_wait(handle, 1, CKPT_CAPTURED, 30000) == CKPT_OK);
  CHECK(ckpt_wait(handle, 1, CKPT_COMMITTED, UINT64_MAX) == CKPT_OK);
  CHECK(ckpt_wait(handle, 99, CKPT_CAPTURED, UINT64_MAX) == CKPT_NOT_FOUND); /* Never saved. */

  /* No step goes back, and what was saved stays. */
  CHECK(ckpt_save(handle, 0, NULL, &outcome) == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "step 1 came before") != NULL);
  CHECK(outcome == CKPT_NO_OUTCOME);
  outcome = CKPT_STARTED;
  CHECK(ckpt_save_if_needed(handle, 0, NULL, &outcome) == CKPT_INVALID_ARGUMENT);
  CHECK(outcome == CKPT_NO_OUTCOME);

  CHECK(ckpt_stats(handle, &stats) == CKPT_OK);
  CHECK(stats.saves_started == 1);
  CHECK(stats.failed == 2);
  CHECK(stats.newest_committed == 1);
  stats.size = 0;
  CHECK(ckpt_stats(handle, &stats) == CKPT_INVALID_ARGUMENT);
  stats.size = 2 * sizeof(size_t); /* As an older caller, that knows fewer fields. */
  stats.skipped_no_slot = 4711;
  CHECK(ckpt_stats(handle, &stats) == CKPT_OK);
  CHECK(stats.skipped_no_slot == 4711);

  CHECK(ckpt_close(handle, UINT64_MAX) == CKPT_OK);
  ckpt_free(handle);
}

static void second_life(const ckpt_options* options) {
  ckpt_handle* handle = NULL;
  ckpt_restored restored = {.size = sizeof restored};
  float expected[6] = {1, 2, 3, 4, 5, 6};
  float weights[6] = {0};
  double rate = 0;
  uint64_t position = 0;
  int64_t shape[2] = {2, 3};
  const void* note = NULL;
  size_t note_size = 0;

  CHECK(ckpt_open(options, &handle) == CKPT_OK);
  if (handle == NULL) return;
  CHECK(ckpt_add(handle, "weights", weights, CKPT_DTYPE_F32, shape, 2, CKPT_TENSOR_GUARDED) ==
        CKPT_OK);
  CHECK(ckpt_add(handle, "rate", &rate, CKPT_DTYPE_F64, NULL, 0, 0) == CKPT_OK);
  CHECK(ckpt_add_blob(handle, "position", &position, sizeof position) == CKPT_OK);
  restored.size = 0;
  CHECK(ckpt_restore(handle, &restored) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_restore_step(handle, 1, &restored) == CKPT_INVALID_ARGUMENT);
  CHECK(weights[0] == 0); /* Refused before anything was overwritten. */
  restored.size = sizeof restored;
  CHECK(ckpt_restore(handle, &restored) == CKPT_OK);
  CHECK(restored.step == 1);
  CHECK(restored.source == CKPT_STORAGE);
  CHECK(restored.source_name[0] != '\0');
  CHECK(memcmp(weights, expected, sizeof weights) == 0);
  CHECK(rate == 0.25);
  CHECK(position == 77);
  CHECK(ckpt_blob(handle, "note", &note, &note_size) == CKPT_OK);
  CHECK(note_size == 5 && memcmp(note, "hello", 5) == 0);
  CHECK(ckpt_blob(handle, "no such", &note, &note_size) == CKPT_NOT_FOUND);
  CHECK(ckpt_restored_ok(handle, 2) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_restored_ok(handle, 1) == CKPT_OK);
  CHECK(ckpt_restore(handle, &restored) == CKPT_OK);
  CHECK(restored.newest_seen == 1); /* The daemon has seen it begin there. */
  CHECK(restored.bytes_from_storage == (restored.source == CKPT_STORAGE ? restored.bytes : 0));
  CHECK(ckpt_close(handle, 60000) == CKPT_OK);
  ckpt_free(handle);
}

/* Other training, which calls the weights "backbone" and wants nothing else. */
/* `terms` restore step 1, which is in memory and in the directory `path`. */
static void life_of_sources(ckpt_handle* handle, ckpt_restore_terms terms, const char* path) {
  ckpt_restored restored = {.size = sizeof restored};
  for (terms.source = -1; terms.source <= 3; terms.source += 4) {
    CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_INVALID_ARGUMENT);
    CHECK(strstr(ckpt_last_error(), "there is no such source") != NULL);
  }
  terms.source = CKPT_STORAGE_ONLY;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_OK);
  CHECK(restored.step == 1);
  CHECK(restored.source == CKPT_STORAGE);
  terms.source = CKPT_MEMORY_ONLY;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_OK);
  CHECK(restored.source == CKPT_OWN_MEMORY);
  terms.step = CKPT_NO_STEP;
  terms.from = path;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "the path is one") != NULL);
}

static void life_of_terms(const char* directory, const ckpt_options* options) {
  ckpt_handle* handle = NULL;
  ckpt_restored restored = {.size = sizeof restored};
  char path[256];
  const float expected[6] = {1, 2, 3, 4, 5, 6};
  float weights[6] = {0};
  double rate = 0;
  uint64_t position = 5;
  int64_t shape[2] = {2, 3};
  const char* there[2] = {"weights", "rate"};
  const char* here[2] = {"backbone", "speed"};
  ckpt_restore_terms terms = {.size = sizeof terms, .step = CKPT_NO_STEP};

  snprintf(path, sizeof path, "%s/ckpt", directory);
  CHECK(ckpt_open(options, &handle) == CKPT_OK);
  if (handle == NULL) return;
  CHECK(ckpt_add(handle, "backbone", weights, CKPT_DTYPE_F32, shape, 2, 0) == CKPT_OK);
  CHECK(ckpt_add_blob(handle, "position", &position, sizeof position) == CKPT_OK);
  CHECK(ckpt_restore_with(NULL, &terms, &restored) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_restore_with(handle, NULL, &restored) == CKPT_INVALID_ARGUMENT);
  terms.size = 0;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "ckpt_restore_with: the size field") != NULL);
  terms.size = sizeof terms;
  terms.renamed = 1;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "names_there is NULL") != NULL);
  terms.names_there = there;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "names_here is NULL") != NULL);
  terms.names_here = here;
  here[0] = NULL;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_INVALID_ARGUMENT);
  here[0] = "backbone";
  terms.from = path;
  terms.step = 1;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_INVALID_ARGUMENT); /* One of them. */
  terms.step = CKPT_NO_STEP;
  CHECK(ckpt_restore_with(handle, &terms, &restored) ==
        CKPT_INVALID_ARGUMENT); /* "rate" is left. */
  CHECK(weights[0] == 0);
  terms.leaves_rest = 1;
  CHECK(ckpt_restore_with(handle, &terms, &restored) == CKPT_OK);
  CHECK(restored.step == 1);
  CHECK(restored.newest_seen == CKPT_NO_STEP); /* A path is of any job. */
  CHECK(restored.bytes_from_storage == restored.bytes);
  CHECK(memcmp(weights, expected, sizeof weights) == 0);
  CHECK(position == 5);

  /* The job's own step, with all that it has, by two rules. */
  memset(weights, 0, sizeof weights);
  terms = (ckpt_restore_terms){.size = sizeof terms, .step = 1};
  terms.names_there = there;
  terms.names_here = here;
  terms.renamed = 2;
  CHECK(ckpt_add(handle, "speed", &rate, CKPT_DTYPE_F64, NULL, 0, 0) == CKPT_OK);
  CHECK(ckpt_restore_with(handle, &terms, NULL) == CKPT_OK);
  CHECK(memcmp(weights, expected, sizeof weights) == 0);
  CHECK(rate == 0.25);
  CHECK(position == 77);
  life_of_sources(handle, terms, path);
  terms.step = 9;
  CHECK(ckpt_restore_with(handle, &terms, NULL) == CKPT_NOT_FOUND);
  CHECK(ckpt_close(handle, 60000) == CKPT_OK);
  ckpt_free(handle);
}

/* With tensors of another shape than what is stored. */
static void third_life(const ckpt_options* options) {
  ckpt_handle* handle = NULL;
  float weights[6] = {0};
  double rate = 0;
  uint64_t position = 0;
  int64_t shape[2] = {3, 2};
  int outcome = CKPT_STARTED;

  CHECK(ckpt_open(options, &handle) == CKPT_OK);
  if (handle == NULL) return;
  CHECK(ckpt_add(handle, "weights", weights, CKPT_DTYPE_F32, shape, 2, 0) == CKPT_OK);
  CHECK(ckpt_add(handle, "rate", &rate, CKPT_DTYPE_F64, NULL, 0, 0) == CKPT_OK);
  CHECK(ckpt_add_blob(handle, "position", &position, sizeof position) == CKPT_OK);
  CHECK(ckpt_restore(handle, NULL) == CKPT_INVALID_ARGUMENT);
  CHECK(strstr(ckpt_last_error(), "\"weights\" is F32 [3, 2] here and F32 [2, 3] there") != NULL);
  CHECK(weights[0] == 0);
  /* The stored step may be good: it is not replaced before somebody says so. */
  CHECK(ckpt_save(handle, 2, NULL, &outcome) == CKPT_INVALID_ARGUMENT);
  CHECK(outcome == CKPT_NO_OUTCOME);
  CHECK(strstr(ckpt_last_error(), "start_fresh") != NULL);
  CHECK(ckpt_wait(handle, 2, CKPT_CAPTURED, 30000) == CKPT_NOT_FOUND);
  CHECK(ckpt_start_fresh(handle) == CKPT_OK);
  /* The step that was refused is not used up. */
  CHECK(ckpt_save(handle, 2, NULL, &outcome) == CKPT_OK);
  CHECK(outcome == CKPT_STARTED);
  CHECK(ckpt_wait(handle, 2, CKPT_COMMITTED, 30000) == CKPT_OK);
  CHECK(ckpt_close(handle, 60000) == CKPT_OK);
  ckpt_free(handle);
}

/* Saves parts of larger tensors, and reads other parts of them. */
static void life_of_pieces(const char* directory, const ckpt_options* options) {
  ckpt_handle* handle = NULL;
  ckpt_restored restored = {.size = sizeof restored};
  char path[256];
  float rows[16];
  float flat[5] = {3, 4, 5, 6, 7};
  float some_rows[8] = {0};
  float some_flat[2] = {0};
  const uint64_t matrix[2] = {8, 4}, first_row[2] = {4, 0}, other_row[2] = {5, 0}, vector[1] = {9};
  int64_t rows_shape[2] = {4, 4}, some_rows_shape[2] = {2, 4};
  int64_t flat_shape[1] = {5}, some_flat_shape[1] = {2};
  ckpt_piece box = {.size = sizeof box, .global_shape = matrix, .global_dimensions = 2};
  ckpt_piece range = {.size = sizeof range, .global_shape = vector, .global_dimensions = 1};
  int i;

  for (i = 0; i < 16; ++i) rows[i] = (float)(16 + i); /* Each element has its own number. */
  CHECK(ckpt_open(options, &handle) == CKPT_OK);
  if (handle == NULL) return;
  box.offset = first_row;
  range.flat_begin = 3;
  CHECK(ckpt_add_piece(handle, "rows", rows, CKPT_DTYPE_F32, rows_shape, 2, 0, NULL) ==
        CKPT_INVALID_ARGUMENT);
  range.size = 0;
  CHECK(ckpt_add_piece(handle, "flat", flat, CKPT_DTYPE_F32, flat_shape, 1, 0, &range) ==
        CKPT_INVALID_ARGUMENT);
  range.size = sizeof range;
  CHECK(ckpt_add_piece(handle, "rows", rows, CKPT_DTYPE_F32, rows_shape, 2, 0, &box) == CKPT_OK);
  CHECK(ckpt_add_piece(handle, "flat", flat, CKPT_DTYPE_F32, flat_shape, 1, 0, &range) == CKPT_OK);
  range.flat_begin = 5; /* Beyond the end. */
  CHECK(ckpt_add_piece(handle, "far", flat, CKPT_DTYPE_F32, flat_shape, 1, 0, &range) ==
        CKPT_INVALID_ARGUMENT);
  range.flat_begin = 3;
  range.copy = range.copies = 2; /* Two copies, counted from 0. */
  CHECK(ckpt_add_piece(handle, "copy", flat, CKPT_DTYPE_F32, flat_shape, 1, 0, &range) ==
        CKPT_INVALID_ARGUMENT);
  range.copy = 1;
  CHECK(ckpt_add_piece(handle, "copy", flat, CKPT_DTYPE_F32, flat_shape, 1, 0, &range) == CKPT_OK);
  range.copy = range.copies = 0;
  CHECK(ckpt_start_fresh(handle) == CKPT_OK);
  CHECK(ckpt_save(handle, 1, NULL, NULL) == CKPT_OK);
  CHECK(ckpt_wait(handle, 1, CKPT_DURABLE, 30000) == CKPT_OK);
  CHECK(ckpt_close(handle, 60000) == CKPT_OK);
  ckpt_free(handle);

  handle = NULL;
  snprintf(path, sizeof path, "%s/ckpt", directory);
  CHECK(ckpt_open(options, &handle) == CKPT_OK);
  if (handle == NULL) return;
  box.offset = other_row;
  range.flat_begin = 6;
  CHECK(ckpt_add_piece(handle, "rows", some_rows, CKPT_DTYPE_F32, some_rows_shape, 2, 0, &box) ==
        CKPT_OK);
  CHECK(ckpt_add_piece(handle, "flat", some_flat, CKPT_DTYPE_F32, some_flat_shape, 1, 0, &range) ==
        CKPT_OK);
  CHECK(ckpt_restore_from(handle, NULL, &restored) == CKPT_INVALID_ARGUMENT);
  CHECK(ckpt_restore_from(handle, path, &restored) == CKPT_OK);
  CHECK(restored.step == 1);
  CHECK(memcmp(some_rows, rows + 4, sizeof some_rows) == 0);
  CHECK(some_flat[0] == 6 && some_flat[1] == 7);
  CHECK(ckpt_close(handle, 60000) == CKPT_OK);
  ckpt_free(handle);
}

int main(void) {
  char directory[] = "/tmp/ckpt_test.XXXXXX";
  char command[128];
  ckpt_options* options;

  CHECK(strchr(ckpt_version(), '.') != NULL);
  CHECK(ckpt_last_error() != NULL);
  if (mkdtemp(directory) == NULL) {
    perror("mkdtemp");
    return 2;
  }
  snprintf(command, sizeof command, "mkdir -m 700 %s/run %s/ckpt", directory, directory);
  CHECK(system(command) == 0);
  options = make_options(directory);
  check_refusals(options);
  first_life(options);
  second_life(options);
  life_of_terms(directory, options);
  third_life(options);
  snprintf(command, sizeof command, "rm -rf %s/ckpt && mkdir -m 700 %s/ckpt", directory, directory);
  CHECK(system(command) == 0);
  life_of_pieces(directory, options);
  ckpt_options_free(options);
  snprintf(command, sizeof command, "rm -rf %s", directory);
  CHECK(system(command) == 0);
  if (failures == 0) printf("all checks of the C ABI held\n");
  return failures == 0 ? 0 : 1;
}
