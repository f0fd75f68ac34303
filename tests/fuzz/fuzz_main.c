/* libFuzzer's entry: no Python runs here, the module is only linked. */
#include <stddef.h>
#include <stdint.h>

int confluo_fuzz(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return confluo_fuzz(data, size); }
