// Formats in which a conversation is a list of turns, and a turn of the assistant holds reasoning, an answer and calls:
// ChatML, MiMo, MiniMax, Kimi, DeepSeek. They share one parser (chat_turns.c) and the small parts of prompts
// (chat_turns_write.c). A format says what its control tokens mean and how calls are read, and writes its turns itself.
//
// A turn of the assistant is read as several messages: reasoning (channel "analysis"), answer ("final") and calls.
#ifndef NIB_CHAT_TURNS_H
#define NIB_CHAT_TURNS_H

#include <jansson.h>

#include "text/chat_format.h"
#include "text/json_text.h"

// What a control token means where it has a meaning at all.
enum nib_sign {
    NIB_SIGN_NONE,
    NIB_SIGN_TURN, // a turn begins, and its role follows as text
    NIB_SIGN_USER, // a turn of this role begins
    NIB_SIGN_ASSISTANT,
    NIB_SIGN_SYSTEM,
    NIB_SIGN_HEAD_END,  // the text of the role is over
    NIB_SIGN_TURN_END,  // so is the turn
    NIB_SIGN_TEXT_END,  // so is all text
    NIB_SIGN_THINK,     // reasoning begins
    NIB_SIGN_THOUGHT,   // reasoning is over
    NIB_SIGN_CALL,      // calls follow
    NIB_SIGN_ARGUMENTS, // from here on a call's arguments
    NIB_SIGN_CALL_PART, // parts of a call are separated
    NIB_SIGN_CALL_END,  // what NIB_SIGN_CALL began is over
    NIB_SIGN_CALLS_END  // no further call
};

enum nib_head {
    NIB_HEAD_NONE, // the token that begins a turn says its role
    NIB_HEAD_LINE, // the role's text ends with its line
    NIB_HEAD_TOKEN // it ends at NIB_SIGN_HEAD_END
};

// Messages that make one turn: what the assistant says at a time (reasoning, a text, calls), all results of tools, or one
// message of anybody else.
struct nib_turn {
    enum nib_role role;
    const struct nib_message *messages; /* [count] */
    size_t count, first;                // first: its first message's number
};

struct nib_tool_markup;

struct nib_turn_grammar {
    enum nib_head head;
    bool calls_end_reasoning; // a token that begins calls ends a thought; it is never part of one
    // The header, from NIB_SIGN_CALL to NIB_SIGN_CALL_END, holds calls: gives each to nib_turn_put_call. False: they cannot
    // be read, and none has been given. NULL: calls are read by read_name.
    bool (*read_calls)(struct nib_chat_parser *parser);
    // Whether a header ends within an argument of a call, so that a tag of calls there is text. NULL: never.
    bool (*in_argument)(struct nib_text header);
    // The header ends before a call's arguments: fills in recipient and id. NULL: no NIB_SIGN_ARGUMENTS is expected.
    void (*read_name)(struct nib_chat_parser *parser);

    // What stands before all turns.
    nib_status (*put_system)(const struct nib_chat *chat, const struct nib_conversation *conversation,
                             struct nib_pieces *pieces, struct nib_error *err);
    // A turn, with the reasoning of those of its messages whose number is at least `reasons_from`.
    bool (*put_turn)(const struct nib_chat *chat, const struct nib_conversation *conversation,
                     const struct nib_turn *turn, size_t reasons_from, struct nib_pieces *pieces);
    // The beginning of the assistant's next turn. Sets reply_from.
    nib_status (*put_reply)(const struct nib_chat *chat, const struct nib_conversation *conversation,
                            struct nib_pieces *pieces, struct nib_error *err);
    size_t (*reasons_from)(const struct nib_conversation *conversation); // NULL: all reasoning is kept

    // For nib_turns_frame.
    const char *behind_thought; // words between a thought's end and what follows
    // A call up to its arguments, from the token on that begins it.
    bool (*put_call_head)(const struct nib_chat *chat, const struct nib_message *call, struct nib_pieces *pieces);
    const char *(*call_end)(const struct nib_chat *chat); // the words behind arguments in JSON
    const struct nib_tool_markup *markup;                 // or how they are written else, up to NIB_SIGN_CALL_END
};

// For the format's table.
void nib_turns_begin(struct nib_chat_parser *parser, enum nib_chat_from from);
void nib_turns_push(struct nib_chat_parser *parser, int32_t token);
void nib_turns_finish(struct nib_chat_parser *parser);
nib_status nib_turns_render(const struct nib_chat *chat, const struct nib_conversation *conversation,
                            struct nib_pieces *pieces, struct nib_error *err);
nib_status nib_turns_frame(const struct nib_chat *chat, const struct nib_message *header, bool bound, bool goes_on,
                           struct nib_message_frame *frame, struct nib_error *err);
nib_status nib_turns_render_exact(const struct nib_chat *chat, const struct nib_message *message,
                                  struct nib_pieces *pieces, struct nib_error *err);

// For read_calls: a complete call of the tool `name`.
void nib_turn_put_call(struct nib_chat_parser *parser, struct nib_text name, struct nib_text arguments);

// The whole of read_calls for formats whose calls are mark-up.
bool nib_turn_put_markup(struct nib_chat_parser *parser, const struct nib_tool_markup *markup);

// For read_name: "functions." before a name that does not begin so.
struct nib_text nib_turn_recipient(struct nib_chat_parser *parser, struct nib_text name);

// ---- writing

nib_status nib_turns_out_of_memory(const struct nib_chat *chat, struct nib_error *err);

bool nib_is_reasoning(const struct nib_message *message);

static inline bool nib_is_call(const struct nib_message *message)
{
    return message->role == NIB_ROLE_ASSISTANT && message->recipient.size > 0;
}

// The tool's name without "functions.".
struct nib_text nib_function_of(struct nib_text tool);

// From this message on reasoning is shown again: behind the last question, or behind the last answer.
size_t nib_reasons_from_question(const struct nib_conversation *conversation);
size_t nib_reasons_from_answer(const struct nib_conversation *conversation);

// Whether a turn has reasoning at or behind message `from`; and its texts, a line break between them.
bool nib_turn_reasons(const struct nib_turn *turn, size_t from);
bool nib_turn_put_reasoning(struct nib_pieces *pieces, const struct nib_turn *turn, size_t from);

// What stands around a turn that is not the assistant's, and around each of its texts.
struct nib_turn_words {
    const char *begin, *before, *behind, *end;
};

bool nib_turn_put_between(const struct nib_chat *chat, const struct nib_turn *turn,
                          const struct nib_turn_words *words, struct nib_pieces *pieces);

// The instructions, and what answers must look like; `otherwise` where there are no instructions.
void nib_turns_write_instructions(struct nib_writer *out, const struct nib_conversation *conversation,
                                  const char *otherwise);

// The turn of the system: `begin`, what `write` writes, `how_to_call` where there are tools, `end`; none at all where
// nothing is written.
nib_status nib_turns_put_system(const struct nib_chat *chat, const struct nib_conversation *conversation,
                                nib_status (*write)(struct nib_writer *out,
                                                    const struct nib_conversation *conversation,
                                                    struct nib_error *err),
                                const char *begin, const char *how_to_call, const char *end,
                                struct nib_pieces *pieces, struct nib_error *err);

// Each tool in turn, as nib_tool_json has it.
nib_status nib_turns_write_tools(struct nib_writer *out, const struct nib_conversation *conversation,
                                 void (*write)(struct nib_writer *out, const json_t *function),
                                 struct nib_error *err);

// {"name", "description", "parameters"} as far as they are there, new; NULL with a message when it cannot be made.
json_t *nib_tool_json(const struct nib_tool *tool, struct nib_error *err);

// A copy of what was written, as a piece; frees the writer. False when memory is or was out.
bool nib_pieces_put_written(struct nib_pieces *pieces, struct nib_writer *writer);

#endif
