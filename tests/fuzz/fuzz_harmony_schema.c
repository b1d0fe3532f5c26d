// Any bytes as a tool's parameters, description and name: rendered or refused, and parsed back as one message.
#include "support/chat_property.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct nib_vocabulary vocabulary = byte_vocabulary();
    struct nib_chat *chat;
    if (nib_chat_open(nib_chat_format_find("harmony"), &vocabulary, &chat, NULL) != NIB_OK)
        abort();
    struct nib_text text = {(const char *)data, size};
    struct nib_tool tool = {.name = text, .description = text, .parameters = text};
    struct nib_conversation conversation = {.tools = &tool, .tool_count = 1, .no_reply = true};
    struct nib_pieces pieces = {0};
    struct nib_error err = {0};
    nib_status status = nib_chat_render(chat, &conversation, &pieces, &err);
    if (status == NIB_OK ? pieces.count != 5 : status != NIB_ERR_ARGUMENT && status != NIB_ERR_LIMIT) {
        fprintf(stderr, "schema: status %d, %zu pieces: %s\n", (int)status, pieces.count, err.message);
        abort();
    }
    nib_pieces_free(&pieces);
    nib_chat_close(chat);
    return 0;
}
