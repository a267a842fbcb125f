package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
)

const documentPath = "/v1/openapi.json"

type object = map[string]any

// fixedRoutes are those that every process has, and those of a broker.
func (s Source) fixedRoutes() []route {
	routes := []route{
		{method: "GET", pattern: "/", summary: "The paths that there are, a line each"},
		{method: "GET", pattern: "/healthz", summary: "Whether the process lives"},
		{method: "GET", pattern: "/readyz", summary: "Whether it is ready, and else why it is not, a line each", statuses: []int{503}},
		{method: "GET", pattern: "/metrics", summary: "Metrics, for Prometheus"},
		{method: "GET", pattern: documentPath, summary: "This document", answer: json.RawMessage{}},
	}
	if s.Status != nil {
		routes = append(routes, route{method: "GET", pattern: "/v1/status", summary: "How the application is in this process", answer: Status{}})
	}
	if s.Broker != nil {
		routes = append(routes, route{method: "GET", pattern: "/v1/broker", summary: "What the broker in this process holds", answer: s.Broker()})
	}
	if s.Backup != nil {
		routes = append(routes, route{method: "POST", pattern: backupPath, summary: "Copy the broker's data to a directory, for who knows its secret", body: backupRequest{}, statuses: []int{400, 403}})
	}
	return routes
}

// document describes the API as OpenAPI does: every route that this process
// has, and no other. It is made of what the handlers are made of.
func (s Source) document() object {
	schemas := make(object)
	paths := make(object)
	for _, rt := range slices.Concat(s.fixedRoutes(), s.appRoutes()) {
		item, _ := paths[rt.pattern].(object)
		if item == nil {
			item = make(object)
			paths[rt.pattern] = item
		}
		item[strings.ToLower(rt.method)] = rt.operation(schemas, s.Token != "")
	}
	doc := object{
		"openapi":    "3.1.0",
		"info":       object{"title": "Pawl's admin API", "version": "1", "description": "What a program's admin port answers. Paths that begin with /v1 stay as they are; members are added."},
		"paths":      paths,
		"components": object{"schemas": schemas},
	}
	if s.Token != "" {
		doc["components"].(object)["securitySchemes"] = object{"token": object{"type": "http", "scheme": "bearer"}}
	}
	return doc
}

func (rt route) operation(schemas object, guarded bool) object {
	op := object{"summary": rt.summary, "operationId": rt.operationID()}
	var params []any
	rest := rt.pattern
	for {
		_, after, ok := strings.Cut(rest, "{")
		if !ok {
			break
		}
		name, next, _ := strings.Cut(after, "}")
		params = append(params, object{"name": name, "in": "path", "required": true, "schema": object{"type": "string"}})
		rest = next
	}
	for _, p := range rt.query {
		params = append(params, object{"name": p.name, "in": "query", "description": p.what, "schema": object{"type": p.kind}})
	}
	if params != nil {
		op["parameters"] = params
	}
	if rt.body != nil {
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": schemaOf(reflect.TypeOf(rt.body), schemas)}}}
	}
	kind, schema := "text/plain", any(object{"type": "string"})
	if rt.answer != nil {
		kind, schema = "application/json", schemaOf(reflect.TypeOf(rt.answer), schemas)
	}
	responses := object{"200": object{"description": "OK", "content": object{kind: object{"schema": schema}}}}
	for _, status := range rt.statuses {
		failure := object{"description": http.StatusText(status)}
		if rt.does != nil {
			failure["content"] = object{"application/json": object{"schema": schemaOf(reflect.TypeFor[Failure](), schemas)}}
		}
		responses[fmt.Sprint(status)] = failure
	}
	if guarded && rt.pattern != "/healthz" && rt.pattern != "/readyz" {
		op["security"] = []any{object{"token": []any{}}}
		responses["401"] = object{"description": "The token is missing or wrong"}
	}
	op["responses"] = responses
	return op
}

// operationID is a name for the operation, as generators of clients want one.
func (rt route) operationID() string {
	parts := strings.FieldsFunc(rt.pattern, func(r rune) bool { return strings.ContainsRune("/{}-.", r) })
	id := strings.ToLower(rt.method)
	for _, p := range parts {
		id += strings.ToUpper(p[:1]) + p[1:]
	}
	return id
}

// schemaName is what a struct is called in the document: as it is here, but for
// those of another package, which has an Offset too.
func schemaName(t reflect.Type) string {
	if t.PkgPath() == reflect.TypeFor[Source]().PkgPath() {
		return t.Name()
	}
	from := t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:]
	return strings.ToUpper(from[:1]) + from[1:] + t.Name()
}

// schemaOf describes a type as encoding/json writes it. Structs go to schemas,
// by name.
func schemaOf(t reflect.Type, schemas object) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return object{}
	case t == reflect.TypeFor[[]byte]():
		return object{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), schemas)
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem(), schemas)}
	case reflect.Struct:
		named := schemaName(t)
		ref := object{"$ref": "#/components/schemas/" + named}
		if _, ok := schemas[named]; ok {
			return ref
		}
		schemas[named] = object{} // while it is made: it may hold itself
		properties := make(object)
		var required []string
		for i := range t.NumField() {
			name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			properties[name] = schemaOf(t.Field(i).Type, schemas)
			if !strings.Contains(options, "omit") {
				required = append(required, name)
			}
		}
		schema := object{"type": "object", "properties": properties, "additionalProperties": false}
		if required != nil {
			schema["required"] = required
		}
		schemas[named] = schema
		return ref
	}
	return object{"type": "integer"}
}
