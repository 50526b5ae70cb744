package mcp

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"skerry.internal/proto/problem"
)

// kind is what a parameter's value is in JSON.
type kind string

const (
	text   kind = "string"
	number kind = "integer"
	flag   kind = "boolean"
	list   kind = "array" // of strings
)

// param is one parameter of a tool: the schema that clients see and the check
// of what they send come from it alone.
type param struct {
	name, doc string
	kind      kind
	required  bool
	// least and most bound a number; most bounds the items of a list and the
	// characters of a text. 0: no bound.
	least, most int64
	// bytes is how many bytes a text may have. 0: no bound.
	bytes int
	enum  []string
	// pairs: the items of a list are objects with a source and a target.
	pairs bool
	// later names what is missing for a parameter that is known but not yet
	// served: it is refused unless it asks for nothing.
	later string
}

// schema is the JSON Schema of an object with these properties and no others.
func schema(params []param) map[string]any {
	properties, required := map[string]any{}, []string{}
	for _, p := range params {
		properties[p.name] = p.schema()
		if p.required {
			required = append(required, p.name)
		}
	}
	out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}

func (p param) schema() map[string]any {
	s := map[string]any{"type": string(p.kind), "description": p.doc}
	switch p.kind {
	case text:
		if p.most > 0 {
			s["maxLength"] = p.most
		}
		if len(p.enum) > 0 {
			s["enum"] = p.enum
		}
	case number:
		s["minimum"] = p.least
		if p.most > 0 {
			s["maximum"] = p.most
		}
	case list:
		s["items"] = map[string]any{"type": "string"}
		if p.pairs {
			s["items"] = schema([]param{{name: "source", kind: text, required: true, doc: "Path in the source."}, {name: "target", kind: text, required: true, doc: "Path in the target."}})
		}
		if p.most > 0 {
			s["maxItems"] = p.most
		}
	case flag:
	}
	return s
}

// arguments are checked values by parameter name: string, int64, bool or
// []string. Absent and null are the same.
type arguments map[string]any

// get gives a value, or the zero value where there is none.
func get[T any](a arguments, name string) T {
	v, _ := a[name].(T)
	return v
}

func (a arguments) has(name string) bool { return a[name] != nil }

// wait gives wait_ms as the API takes it: nil where it was not given.
func (a arguments) wait() *uint32 {
	if !a.has("wait_ms") {
		return nil
	}
	ms := uint32(get[int64](a, "wait_ms"))
	return &ms
}

// decode checks the arguments of a call. Unknown parameters are refused, since
// what they ask for would not be done.
func decode(raw json.RawMessage, params []param) (arguments, error) {
	given := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := checkUnicode(raw); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, problem.Invalid("", "send an object with the tool's parameters", "the arguments are no JSON object")
		}
	}
	out := arguments{}
	for _, p := range params {
		value, ok := given[p.name]
		delete(given, p.name)
		if !ok || string(value) == "null" {
			if p.required {
				return nil, problem.Invalid(p.name, "give it: "+p.doc, "is missing")
			}
			continue
		}
		v, err := p.value(value)
		if err != nil {
			return nil, err
		}
		out[p.name] = v
	}
	if len(given) > 0 {
		return nil, unknown(slices.Min(slices.Collect(maps.Keys(given))), params)
	}
	return out, nil
}

func unknown(name string, params []param) error {
	var names []string
	for _, p := range params {
		if p.later == "" {
			names = append(names, p.name)
		}
	}
	const most = 64
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "..."
	}
	return problem.Invalid(name, "remove it; this tool takes "+strings.Join(names, ", "), "unknown parameter")
}

// unsupported refuses a parameter of a part that this version lacks.
func (p param) unsupported() error {
	e := problem.New(connect.CodeUnimplemented, problem.Unsupported, "leave it out", "not supported yet: %s", p.later)
	e.Field = p.name
	return e
}

func (p param) wrong(value json.RawMessage) error {
	names := map[kind]string{text: "a string", number: "an integer", flag: "true or false", list: "an array of strings"}
	return problem.Invalid(p.name, "send "+names[p.kind], "is %s", jsonKind(value))
}

func jsonKind(value json.RawMessage) string {
	switch value[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array of something else"
	case 't', 'f':
		return "a boolean"
	}
	return fmt.Sprintf("the number %.40s", value)
}
