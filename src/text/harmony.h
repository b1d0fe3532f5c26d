// Shared by the files of the harmony format, https://github.com/openai/harmony (docs/format.md).
#ifndef NIB_HARMONY_H
#define NIB_HARMONY_H

#include "text/chat_format.h"

// Order of the control tokens in nib_chat.controls.
enum harmony_control {
    HARMONY_START,
    HARMONY_END,
    HARMONY_MESSAGE,
    HARMONY_CHANNEL,
    HARMONY_CONSTRAIN,
    HARMONY_RETURN,
    HARMONY_CALL,
    HARMONY_END_OF_TEXT
};

nib_status nib_harmony_render(const struct nib_chat *chat, const struct nib_conversation *conversation,
                              struct nib_pieces *pieces, struct nib_error *err);
nib_status nib_harmony_render_exact(const struct nib_chat *chat, const struct nib_message *message,
                                    struct nib_pieces *pieces, struct nib_error *err);

nib_status nib_harmony_frame(const struct nib_chat *chat, const struct nib_message *header, bool bound,
                             bool goes_on, struct nib_message_frame *frame, struct nib_error *err);

// Appends a JSON schema as the TypeScript-like type that harmony shows tools with. `what` names it in messages.
nib_status nib_harmony_put_type(struct nib_writer *out, struct nib_text schema, struct nib_text what,
                                struct nib_error *err);

void nib_harmony_begin(struct nib_chat_parser *parser, enum nib_chat_from from);
void nib_harmony_push(struct nib_chat_parser *parser, int32_t token);
void nib_harmony_finish(struct nib_chat_parser *parser);

// Reads the open message's header into its fields. With `strict` only what can be nothing else counts, and the
// answer is whether that was all of it.
bool nib_harmony_read_header(struct nib_chat_parser *parser, bool strict);

// Gives up on a header without <|message|>: keeps a known role and channel, and moves the rest to the text.
void nib_harmony_header_to_text(struct nib_chat_parser *parser);

#endif
