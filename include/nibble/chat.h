// Conversations: a neutral model of messages and tools, and the chat formats that write them as a prompt and read
// what a model answers. A format is one table of functions (struct nib_chat_format); harmony, the format of gpt-oss,
// is the first.
//
// Everything works on tokens, never on text with control tokens spelled out in it: a prompt is a list of pieces, each
// one control token's id or a run of bytes, so a user who types "<|end|>" has typed seven letters and signs.
//
// Threads: a struct nib_chat is read-only after opening and may be shared; a parser belongs to one thread at a time.
#ifndef NIBBLE_CHAT_H
#define NIBBLE_CHAT_H

#include "nibble/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Bytes, normally UTF-8, that somebody else owns; they may contain NUL and need no terminator. {NULL, 0} is empty,
// and an empty field means "not there" everywhere below.
struct nib_text {
    const char *bytes; /* [size] */
    size_t size;
};

static inline struct nib_text nib_text_of(const char *string)
{
    struct nib_text text = {string, string ? strlen(string) : 0};
    return text;
}

static inline bool nib_text_equal(struct nib_text a, struct nib_text b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.bytes, b.bytes, a.size) == 0);
}

// ---- messages

enum nib_role { NIB_ROLE_SYSTEM, NIB_ROLE_DEVELOPER, NIB_ROLE_USER, NIB_ROLE_ASSISTANT, NIB_ROLE_TOOL };

// How a message ended. Messages of a caller say NIB_END_DEFAULT and the format chooses.
enum nib_end {
    NIB_END_DEFAULT,
    NIB_END_MESSAGE,  // complete, more may follow (harmony <|end|>)
    NIB_END_TURN,     // complete, the model is done (harmony <|return|>)
    NIB_END_CALL,     // complete, the model waits for a tool (harmony <|call|>)
    NIB_END_TEXT,     // the vocabulary's end-of-text token
    NIB_END_MISSING,  // the next message began without one
    NIB_END_TRUNCATED // the stream stopped here
};

struct nib_as_written; // how a parsed message stood in its stream, see nib_chat_render_exact

// One message. Callers fill in what they need (the rest zero) and keep its bytes until they have freed the pieces made
// from it. A parser's messages point into the parser and live as long as it does.
struct nib_message {
    enum nib_role role;
    struct nib_text name; // a tool's full name, "functions.get_weather"; for other roles an author's, rarely
    struct nib_text id;   // of a call, and of the result that answers it; formats without such ids leave it empty
    struct nib_text recipient;    // a tool's full name makes it a call; "assistant" stands on a tool's result
    struct nib_text channel;      // "analysis", "commentary" or "final"
    struct nib_text content_type; // "json"
    struct nib_text text;         // what was said, a call's arguments, a tool's result
    bool constrained;             // the content type stands behind a <|constrain|> token
    bool recipient_in_channel;    // written behind the channel's name rather than behind the role
    enum nib_end end;
    const struct nib_as_written *written; // parser only
};

// The usual messages; the texts are borrowed, not copied.
struct nib_message nib_message_user(struct nib_text text);
struct nib_message nib_message_reasoning(struct nib_text text);
struct nib_message nib_message_answer(struct nib_text text);
struct nib_message nib_message_call(struct nib_text tool, struct nib_text arguments);
struct nib_message nib_message_result(struct nib_text tool, struct nib_text output);

// ---- what a prompt is made from

struct nib_tool {
    struct nib_text name;
    struct nib_text description; // may have several lines
    struct nib_text parameters;  // JSON schema as JSON text; empty: no parameters
};

// Tools of one namespace. A namespace without tools is described by its text alone (the python tool of gpt-oss).
struct nib_tool_group {
    struct nib_text name;
    struct nib_text description;
    const struct nib_tool *tools; /* [tool_count] */
    size_t tool_count;
};

// A JSON schema that answers are asked to follow.
struct nib_response_format {
    struct nib_text name;
    struct nib_text description;
    struct nib_text schema; // JSON text, written as it is
};

// NONE asks for an answer without reasoning; a format that cannot say so refuses it. Most know no other degrees.
enum nib_effort { NIB_EFFORT_UNSAID, NIB_EFFORT_NONE, NIB_EFFORT_LOW, NIB_EFFORT_MEDIUM, NIB_EFFORT_HIGH };

// "none", "low", "medium" or "high"; anything else is false and leaves `effort` alone.
bool nib_effort_from_name(const char *name, enum nib_effort *effort);

// A prompt: what its system and developer messages say, and the messages behind them. An empty field leaves its line
// out; without any line there is no such message (and `messages` may begin with one whose text the caller wrote).
// nib_conversation_defaults() gives what gpt-oss was trained with.
struct nib_conversation {
    struct nib_text model_identity;
    struct nib_text knowledge_cutoff; // "2024-06"
    struct nib_text current_date;     // "2025-06-28"
    enum nib_effort effort;
    struct nib_text channels;              // "analysis, commentary, final"
    const struct nib_tool_group *builtins; /* [builtin_count] tools of the system message, in this order */
    size_t builtin_count;
    struct nib_text instructions; // of the developer
    const struct nib_tool *tools; /* [tool_count] the developer's functions */
    size_t tool_count;
    const struct nib_response_format *responses; /* [response_count] */
    size_t response_count;
    const struct nib_message *messages; /* [message_count] behind those two, in order */
    size_t message_count;
    bool keep_reasoning;             // off: reasoning of earlier turns is left out as the format does it
    bool no_reply;                   // off: the prompt ends where the assistant's next message begins
    const struct nib_message *reply; // NULL, or how that message must begin: its header, and its text so far
};

struct nib_conversation nib_conversation_defaults(void);

// ---- vocabulary and format

// What a chat needs of a tokenizer. `self` is handed to both functions, which several threads may call at once.
struct nib_vocabulary {
    const void *self;
    // The id of the added token spelled so (which no text can become), or -1.
    int32_t (*control)(const void *self, const char *spelling);
    // The bytes that a token shows, valid as long as `self`; empty for a special token or an id it does not know.
    struct nib_text (*bytes)(const void *self, int32_t token);
};

struct nib_tokenizer;
struct nib_token_list;

// A tokenizer's vocabulary; the tokenizer is borrowed.
struct nib_vocabulary nib_vocabulary_of(const struct nib_tokenizer *tokenizer);

// One family's way of writing conversations: a table of functions, defined in one file each.
struct nib_chat_format;

// "harmony" (gpt-oss), "chatml" (Qwen3), "mimo", "minimax", "kimi", "deepseek"; NULL if there is none of that name.
const struct nib_chat_format *nib_chat_format_find(const char *name);

// A format over a vocabulary.
struct nib_chat;

// Looks the format's control tokens up by their spelling. NIB_ERR_NOT_FOUND names the one the vocabulary lacks. The
// vocabulary is copied, its `self` borrowed until nib_chat_close.
nib_status nib_chat_open(const struct nib_chat_format *format, const struct nib_vocabulary *vocabulary,
                         struct nib_chat **chat, struct nib_error *err);
// The format of that model_type (of a config.json; NULL if unknown), if the vocabulary has its control tokens, or else the
// first whose control tokens it has; NIB_ERR_NOT_FOUND when there is none.
nib_status nib_chat_open_fitting(const struct nib_vocabulary *vocabulary, const char *model_type,
                                 struct nib_chat **chat, struct nib_error *err);
void nib_chat_close(struct nib_chat *chat);
const char *nib_chat_name(const struct nib_chat *chat); // of its format
// Its models cannot do without reasoning: NIB_EFFORT_NONE is refused.
bool nib_chat_always_reasons(const struct nib_chat *chat);

// The tokens at which sampling stops. Owned by the chat.
const int32_t *nib_chat_stop_tokens(const struct nib_chat *chat, size_t *count);

// ---- rendering

// Text to be encoded without recognising control tokens in it; or, when the text is empty, one control token.
struct nib_piece {
    struct nib_text text;
    int32_t control;
};

// A growing list. Start with all zero; nib_pieces_free releases it and makes it all zero again. Its texts are partly
// its own, partly borrowed from the messages it was made from, which must therefore outlive it.
struct nib_pieces {
    struct nib_piece *items; /* [count] */
    size_t count, capacity;
    size_t reply_from; // the first piece behind the reply's author: where a parser FROM_REPLY begins to read
    bool joined;       // neighbouring texts are encoded as one, but for those on both sides of reply_from
    struct nib_arena *arena;
};

void nib_pieces_free(struct nib_pieces *pieces);

// Appends the token ids of the pieces from `first` on. The only way from user text to ids: no text becomes a control
// token. Errors as nib_tokenizer_encode.
nib_status nib_pieces_encode(const struct nib_pieces *pieces, size_t first, const struct nib_tokenizer *tokenizer,
                             struct nib_token_list *list, struct nib_error *err);

// Appends the prompt for a conversation. History is normalised: a message ends as its role and recipient demand
// (never with the model's own end of turn), reasoning of earlier turns is left out unless keep_reasoning (harmony and Kimi:
// before the last answer, so a loop of calls that has not led to one keeps it; ChatML and MiniMax: before the last question;
// DeepSeek: all of it; MiMo: none), and
// what `written` records is ignored.
// Errors: NIB_ERR_ARGUMENT for parameters that are not JSON (naming the tool), a tool's message without its name, or an
// effort that the format cannot ask for; NIB_ERR_LIMIT for a schema nested more than 64 deep. On failure `pieces` holds a
// part and is still freed as usual.
nib_status nib_chat_render(const struct nib_chat *chat, const struct nib_conversation *conversation,
                           struct nib_pieces *pieces, struct nib_error *err);

// Appends one message exactly as it stood in the stream it was parsed from; a message without `written` is rendered
// as in nib_chat_render.
//
// The guarantee: for EVERY stream of tokens, rendering all its parsed messages in order gives the pieces of that
// stream: the same control tokens (and unknown ids) in the same order with the same bytes between them. For the
// identical token ids, see nib_as_written's first_token and token_count.
nib_status nib_chat_render_exact(const struct nib_chat *chat, const struct nib_message *message,
                                 struct nib_pieces *pieces, struct nib_error *err);

// ---- parsing

// A control token (or unknown id) that stood behind `at` bytes of a text.
struct nib_mark {
    size_t at;
    int32_t token;
};

// How a parsed message stood in its stream, beyond what its fields say. Owned by the parser.
struct nib_as_written {
    bool started;                        // its start token was there
    bool has_body;                       // the token between header and text was there
    struct nib_text header;              // all bytes before the text, understood or not
    const struct nib_mark *header_marks; /* [header_mark_count] */
    size_t header_mark_count;
    size_t text_from_header;           // so many leading bytes of `text` repeat header bytes that were no header
    const struct nib_mark *text_marks; /* [text_mark_count] control tokens without meaning inside `text` */
    size_t text_mark_count;
    int32_t end_token;                  // -1: none
    const struct nib_mark *stray_marks; /* [stray_mark_count] meaningless control tokens behind the end; at is 0 */
    size_t stray_mark_count;
    size_t first_token, token_count; // its tokens, counted from the parser's first
};

enum nib_chat_event_kind {
    NIB_CHAT_BEGIN, // the header has been read: every field but text and end is known
    NIB_CHAT_DELTA, // more text; never cut inside a UTF-8 character, though the bytes may be invalid by themselves
    NIB_CHAT_END    // the message is complete; its deltas, joined, are its text
};

struct nib_chat_event {
    enum nib_chat_event_kind kind;
    size_t index;                      // of the message, from 0, in order
    const struct nib_message *message; // as far as it is known; text and its bytes valid during the call only
    struct nib_text delta;             // NIB_CHAT_DELTA: the new bytes at the end of message->text
};

// Called from within nib_chat_parser_push and _finish; must not call the parser.
typedef void (*nib_chat_handler)(void *context, const struct nib_chat_event *event);

// Where the stream begins.
enum nib_chat_from {
    NIB_CHAT_FROM_REPLY, // behind a rendered prompt, at reply_from: push the tokens of a forced `reply` first
    NIB_CHAT_FROM_START  // with a whole message, as a prompt does
};

struct nib_chat_parser;

// Parsers are total: every stream, well formed or not, gives messages, in which no text is lost. Only memory can run
// out; the worst stream takes about 150 bytes a token, an ordinary one little more than its tokens and texts. `handler`
// may be NULL. The chat must outlive the parser.
//
// What is done with malformed harmony, in short: a message ends where the next one begins, with or without its end
// token; without a start token the author is the assistant; text where a header belongs is a header if it ends in
// <|message|>, and otherwise the part that is not one becomes the message's text (so a bare "Hello" is an answer
// without channel); <|channel|> inside a text begins the next message; any other control token that means nothing
// where it stands is kept as a mark. The other formats: a turn ends where the next begins; a tag inside a text where it
// means nothing is text; a call that cannot be read, or is cut off, is shown as the text that it is.
nib_status nib_chat_parser_create(const struct nib_chat *chat, enum nib_chat_from from, nib_chat_handler handler,
                                  void *context, struct nib_chat_parser **parser, struct nib_error *err);

// The tools whose schemas say of what type an argument is, for formats that write arguments as bare text (MiMo, MiniMax).
// Copied. Without them such arguments are strings.
void nib_chat_parser_set_tools(struct nib_chat_parser *parser, const struct nib_tool *tools /* [count] */,
                               size_t count);

nib_status nib_chat_parser_push(struct nib_chat_parser *parser, int32_t token, struct nib_error *err);

// The stream is over: an open message ends with NIB_END_TRUNCATED. Idempotent; push must not follow.
nib_status nib_chat_parser_finish(struct nib_chat_parser *parser, struct nib_error *err);

// Complete messages so far (after finish: all). They are owned by the parser.
size_t nib_chat_parser_count(const struct nib_chat_parser *parser);
const struct nib_message *nib_chat_parser_message(const struct nib_chat_parser *parser, size_t index);

// Every token pushed so far. Owned by the parser, valid until the next push.
const int32_t *nib_chat_parser_tokens(const struct nib_chat_parser *parser, size_t *count);

// NULL is fine.
void nib_chat_parser_free(struct nib_chat_parser *parser);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
