package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// field is one settable leaf of a configuration struct.
type field struct {
	// path of YAML keys joined by dots.
	path  string
	value reflect.Value
}

// leaves lists the fields of the struct that into points to.
func leaves(into any) ([]field, error) {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("configuration is a %T, want a pointer to a struct", into)
	}
	return appendLeaves(nil, "", v.Elem()), nil
}

func appendLeaves(out []field, prefix string, v reflect.Value) []field {
	for i := range v.NumField() {
		name, opts, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		f := v.Field(i)
		switch {
		case opts == "inline":
			out = appendLeaves(out, prefix, f)
		case name == "" || name == "-":
		case f.Kind() == reflect.Struct && !isText(f):
			out = appendLeaves(out, prefix+name+".", f)
		default:
			out = append(out, field{path: prefix + name, value: f})
		}
	}
	return out
}

func isText(v reflect.Value) bool {
	_, ok := v.Addr().Interface().(encoding.TextUnmarshaler)
	return ok
}

func (f field) envName(prefix string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(f.path, ".", "_"))
}

func applyEnviron(fields []field, prefix string, environ []string) error {
	if prefix == "" {
		return nil
	}
	byName := make(map[string]field, len(fields))
	for _, f := range fields {
		byName[f.envName(prefix)] = f
	}
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		f, ok := byName[name]
		if !ok {
			return fmt.Errorf("environment variable %s sets no known key; remove it or use one of %s",
				name, known(byName))
		}
		if err := setText(f.value, text); err != nil {
			return fmt.Errorf("environment variable %s: %w", name, err)
		}
	}
	return nil
}

func applyFlags(fields []field, flags map[string]string) error {
	for path, text := range flags {
		i := slices.IndexFunc(fields, func(f field) bool { return f.path == path })
		if i < 0 {
			return fmt.Errorf("flag sets unknown key %q", path)
		}
		if err := setText(fields[i].value, text); err != nil {
			return fmt.Errorf("flag for %s: %w", path, err)
		}
	}
	return nil
}

func known(byName map[string]field) string {
	names := make([]string, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// setText sets one value from text. Lists are separated by commas, maps are
// key=value separated by commas.
func setText(v reflect.Value, text string) error {
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return t.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		return parsed(text, "true or false", strconv.ParseBool, v.SetBool)
	case reflect.Int, reflect.Int32, reflect.Int64:
		parse := func(s string) (int64, error) { return strconv.ParseInt(s, 10, v.Type().Bits()) }
		return parsed(text, "a whole number", parse, v.SetInt)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		parse := func(s string) (uint64, error) { return strconv.ParseUint(s, 10, v.Type().Bits()) }
		return parsed(text, "a whole number from 0", parse, v.SetUint)
	case reflect.Float64:
		parse := func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }
		return parsed(text, "a number", parse, v.SetFloat)
	case reflect.Slice:
		return setList(v, text)
	case reflect.Map:
		return setMap(v, text)
	default:
		return fmt.Errorf("a %s can be set in the file only", v.Type())
	}
	return nil
}

func parsed[T any](text, want string, parse func(string) (T, error), set func(T)) error {
	x, err := parse(text)
	if err != nil {
		return fmt.Errorf("%q is not %s", text, want)
	}
	set(x)
	return nil
}

func setList(v reflect.Value, text string) error {
	list := reflect.MakeSlice(v.Type(), 0, 0)
	for _, part := range split(text) {
		item := reflect.New(v.Type().Elem()).Elem()
		if err := setText(item, part); err != nil {
			return err
		}
		list = reflect.Append(list, item)
	}
	v.Set(list)
	return nil
}

func setMap(v reflect.Value, text string) error {
	if v.Type().Key().Kind() != reflect.String {
		return fmt.Errorf("a %s can be set in the file only", v.Type())
	}
	m := reflect.MakeMap(v.Type())
	for _, part := range split(text) {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("%q is not key=value", part)
		}
		item := reflect.New(v.Type().Elem()).Elem()
		if err := setText(item, value); err != nil {
			return err
		}
		m.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), item)
	}
	v.Set(m)
	return nil
}

func split(text string) []string {
	if text == "" {
		return nil
	}
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
