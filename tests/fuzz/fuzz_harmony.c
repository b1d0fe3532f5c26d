// Bytes to a token stream to messages and back. The first byte chooses where the stream begins; then a byte from 0xe0
// on stands for a control token, an unknown id or a word, any other for itself.
#include "support/chat_property.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int32_t token_of(uint8_t byte)
{
    if (byte < 0xe0)
        return byte;
    if (byte == 0xff)
        return -7;
    return BYTE_CONTROLS + (byte - 0xe0) % (BYTE_TOKENS - BYTE_CONTROLS + 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 << 16)
        return 0;
    struct nib_vocabulary vocabulary = byte_vocabulary();
    struct nib_chat *chat;
    if (nib_chat_open(nib_chat_format_find("harmony"), &vocabulary, &chat, NULL) != NIB_OK)
        abort();
    int32_t *stream = calloc(size, sizeof *stream);
    if (!stream)
        abort();
    for (size_t i = 1; i < size; i++)
        stream[i - 1] = token_of(data[i]);
    const char *fault =
        check_stream(chat, data[0] & 1 ? NIB_CHAT_FROM_REPLY : NIB_CHAT_FROM_START, stream, size - 1);
    if (fault) {
        fprintf(stderr, "harmony: %s\n", fault);
        abort();
    }
    free(stream);
    nib_chat_close(chat);
    return 0;
}
