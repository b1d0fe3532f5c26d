// Bytes to a token stream to messages and back, in the kimi format.
#include "support/turns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_turn_bytes("kimi", data, size);
    return 0;
}
