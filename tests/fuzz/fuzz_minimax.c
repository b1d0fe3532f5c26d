// Bytes to a token stream to messages and back, in the minimax format.
#include "support/turns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_turn_bytes("minimax", data, size);
    return 0;
}
