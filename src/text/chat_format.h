// What a chat format consists of, and what all of them share: the list of pieces and the parser's store of messages.
// A new family is one table in files of its own and one line in chat.c.
#ifndef NIB_CHAT_FORMAT_H
#define NIB_CHAT_FORMAT_H

#include "text/writer.h"

enum { NIB_CHAT_CONTROLS = 24 }; // most control tokens of a format

struct nib_chat_control {
    const char *spelling;
    bool required; // an optional one that the vocabulary lacks has the id -1
    bool stops;    // sampling ends with it
    int sign;      // enum nib_sign, in a format of turns
};

struct nib_turn_grammar;
struct nib_tool_markup;

// How a kind of message stands among the tokens of a reply, for guides.
struct nib_message_frame {
    struct nib_pieces begin;              // in front of its text
    struct nib_pieces end;                // behind it; nothing that the text may go on with begins so
    struct nib_pieces next;               // from there to the message that follows, if one does
    bool absent;                          // the format knows no such messages
    const struct nib_tool_markup *markup; // what a schema binds its text to; NULL: JSON
};

struct nib_chat_format {
    const char *name;
    const char *models;  // what the model_type of its models begins with; NULL: any model may use it
    bool always_reasons; // its models know no answer without
    const struct nib_turn_grammar *turns;                // for the parser of chat_turns.c; or NULL
    struct nib_chat_control controls[NIB_CHAT_CONTROLS]; // up to the first without spelling
    nib_status (*render)(const struct nib_chat *, const struct nib_conversation *, struct nib_pieces *,
                         struct nib_error *);
    nib_status (*render_exact)(const struct nib_chat *, const struct nib_message *, struct nib_pieces *,
                               struct nib_error *);
    // The frame of messages with this header: of text that a schema binds, or of any; behind which another follows, or the
    // answer ends. NIB_ERR_UNSUPPORTED when the format cannot be held to it. NULL: it can be held to nothing.
    nib_status (*frame)(const struct nib_chat *, const struct nib_message *header, bool bound, bool goes_on,
                        struct nib_message_frame *, struct nib_error *);
    // The parser's steps; memory that ran out shows in parser->failed.
    void (*begin)(struct nib_chat_parser *, enum nib_chat_from);
    void (*push)(struct nib_chat_parser *, int32_t token);
    void (*finish)(struct nib_chat_parser *);
};

extern const struct nib_chat_format nib_chat_harmony, nib_chat_chatml, nib_chat_mimo, nib_chat_minimax,
    nib_chat_kimi, nib_chat_deepseek;

struct nib_chat {
    const struct nib_chat_format *format;
    struct nib_vocabulary vocabulary;
    int32_t controls[NIB_CHAT_CONTROLS]; // ids, in the format's order
    int32_t stops[NIB_CHAT_CONTROLS];
    size_t control_count, stop_count;
};

// The format's number of a control token, or -1 for any other token.
int nib_chat_control_of(const struct nib_chat *chat, int32_t token);

// ---- pieces: false when memory is out

bool nib_pieces_put_control(struct nib_pieces *pieces, int32_t token);
bool nib_pieces_put_borrowed(struct nib_pieces *pieces, struct nib_text text); // an empty text adds nothing
bool nib_pieces_put_copy(struct nib_pieces *pieces, const char *prefix, struct nib_text text);

// Words of the format itself: where they spell one of its control tokens, that token is put.
bool nib_pieces_put_words(struct nib_pieces *pieces, const struct nib_chat *chat, const char *words);

// A text with its marks put back where they stood, from byte `from` on.
bool nib_pieces_put_marked(struct nib_pieces *pieces, struct nib_text text, size_t from,
                           const struct nib_mark *marks /* [count] */, size_t count);

// ---- the parser's store

struct nib_marks {
    struct nib_mark *items; /* [count] */
    size_t count, capacity;
};

// A format reads tokens into `header` and `text`, in this order: open, (header bytes and marks), begin, (text bytes
// and marks), close.
struct nib_chat_parser {
    const struct nib_chat *chat;
    nib_chat_handler handler;
    void *context;
    int state;       // the format's own
    bool role_known; // likewise: the open message's role stands in the prompt
    bool failed, finished;
    const struct nib_tool *tools; /* [tool_count] that calls may go to */
    size_t tool_count;
    struct nib_arena *arena;
    struct nib_message **messages; /* [count] complete ones */
    size_t count, capacity;
    struct nib_token_list tokens; // all pushed
    // the message being read
    struct nib_message open;
    struct nib_as_written written;
    struct nib_writer header, text;
    struct nib_marks header_marks, text_marks, stray_marks;
    size_t told; // bytes of text that deltas have carried
    size_t held; // newlines behind the text that may turn out to stand before a tag
};

void nib_parser_open(struct nib_chat_parser *parser, bool started);
void nib_parser_begin(struct nib_chat_parser *parser);
void nib_parser_put_header(struct nib_chat_parser *parser, struct nib_text bytes);
void nib_parser_put_text(struct nib_chat_parser *parser, struct nib_text bytes); // and tells the handler
void nib_parser_mark(struct nib_chat_parser *parser, struct nib_marks *marks, size_t at, int32_t token);
void nib_parser_close(struct nib_chat_parser *parser, enum nib_end end, int32_t end_token);

#endif
